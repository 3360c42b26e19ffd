"""Entry point of the group ``vllm.general_plugins``: makes the connector known by name."""

import logging


def register() -> None:
    """Registers ``InferScaleConnector`` with vLLM's factory.

    vLLM calls this once or more in every process; it may be called again. Never raises.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if "InferScaleConnector" not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(
                "InferScaleConnector", "inferscale.vllm.connector", "InferScaleConnector"
            )
    except Exception as error:  # a plugin that fails must not end the server
        logging.getLogger("vllm.inferscale").warning(
            "the connector could not be registered by name (%s); give kv_connector_module_path", error
        )
