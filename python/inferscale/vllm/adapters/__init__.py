"""One module per range of vLLM versions; ``inferscale.vllm.versions`` chooses."""
