"""The plots of eval_report.py. Files are the same for the same figures: no dates, no random names."""


def load_matplotlib():
    """pyplot, or None where it is not installed."""
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return None
    matplotlib.rcParams.update({
        "svg.hashsalt": "inferscale", "svg.fonttype": "none", "figure.figsize": (8, 4.5), "figure.constrained_layout.use": True,
        "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    return pyplot


def kl(arm):
    """(mean, low, high) of the KL along the reference answer, or of the first token; None when there is none."""
    for name in ("kl_reference", "kl_first"):
        metric = arm["metrics"].get(name)
        if metric and all(metric[key] is not None for key in ("mean", "low", "high")):
            return metric["mean"], metric["low"], metric["high"]
    return None


def label(arm):
    return f"{arm['context']} {arm['cure']}".strip()


def injected(result):
    return [arm for arm in result["arms"] if arm["kind"] == "inject" and kl(arm)]


def spread(values):
    """Lengths of error bars; an interval that leaves out its mean (few cases) has none on that side."""
    return [[max(mean - low, 0) for mean, low, _ in values], [max(high - mean, 0) for mean, _, high in values]]


def by_context(pyplot, result):
    arms = injected(result)
    most = max(arm["k"] for arm in arms)
    arms = [arm for arm in arms if arm["k"] == most]
    labels = list(dict.fromkeys(label(arm) for arm in arms))
    series = sorted({arm["top_j"] for arm in arms})
    figure, axes = pyplot.subplots()
    width = 0.8 / len(series)
    for index, top_j in enumerate(series):
        chosen = [arm for arm in arms if arm["top_j"] == top_j]
        values = [kl(arm) for arm in chosen]
        axes.bar([labels.index(label(arm)) + (index - (len(series) - 1) / 2) * width for arm in chosen],
                 [mean for mean, _, _ in values], width, yerr=spread(values), capsize=2, label=f"top_j {top_j}")
    for arm in result["arms"]:
        if arm["kind"] == "floor" and arm["k"] == most and kl(arm):
            axes.axhline(kl(arm)[0], color="black", linestyle=":", label="noise floor")
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_ylabel("KL against text, nats")
    axes.set_title(f"{most} facts")
    axes.legend()
    return figure


def by_k(pyplot, result):
    lines = {}
    for arm in injected(result):
        lines.setdefault((label(arm), arm["top_j"]), []).append(arm)
    lines = {key: sorted(arms, key=lambda arm: arm["k"]) for key, arms in lines.items() if len({arm["k"] for arm in arms}) > 1}
    if not lines:
        return None
    figure, axes = pyplot.subplots()
    for (name, top_j), arms in lines.items():
        values = [kl(arm) for arm in arms]
        axes.errorbar([arm["k"] for arm in arms], [mean for mean, _, _ in values], yerr=spread(values), capsize=2,
                      marker="o", label=f"{name} top_j {top_j}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("facts (k)")
    axes.set_ylabel("KL against text, nats")
    axes.legend()
    return figure


def by_cost(pyplot, result):
    cost = {row["context"]: row["prefilled_tokens"] / max(row["facts"], 1) for row in result["encoding"]}
    arms = [arm for arm in injected(result) if arm["context"] in cost]
    if not arms:
        return None
    most = max(arm["k"] for arm in arms)
    figure, axes = pyplot.subplots()
    for top_j in sorted({arm["top_j"] for arm in arms}):
        chosen = [arm for arm in arms if arm["top_j"] == top_j and arm["k"] == most]
        axes.scatter([cost[arm["context"]] for arm in chosen], [kl(arm)[0] for arm in chosen], label=f"top_j {top_j}")
        for arm in chosen:
            axes.annotate(label(arm), (cost[arm["context"]], kl(arm)[0]), textcoords="offset points", xytext=(4, 4), fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens prefilled to encode a fact")
    axes.set_ylabel("KL against text, nats")
    axes.set_title(f"{most} facts")
    axes.legend()
    return figure


def row_maps(pyplot, result):
    contexts = result.get("rows") or []
    if not contexts:
        return None
    figure, grid = pyplot.subplots(len(contexts), 2, squeeze=False, figsize=(9, 3.2 * len(contexts)))
    top = max(value for rows in contexts for key in ("k_rel", "v_rel") for row in rows[key] for value in row)
    for line, rows in zip(grid, contexts):
        for axes, key, what in zip(line, ("k_rel", "v_rel"), ("keys", "values")):
            image = axes.imshow(rows[key], aspect="auto", origin="lower", vmin=0, vmax=top or 1, interpolation="nearest")
            axes.set_title(f"{rows['context']}: {what}")
            axes.set_xlabel("position in the fact (last: all later ones)")
            axes.set_ylabel("layer")
            axes.grid(False)
            axes.locator_params(integer=True)
        figure.colorbar(image, ax=list(line), label="relative difference")
    return figure


def draw(pyplot, result, folder, stem):
    """Writes what the result has figures for; (file name, caption) of each."""
    plots = [("rows", "How far injected rows are from those of a joint prefill", row_maps)]
    if injected(result):
        plots = [("kl-context", "KL by encode context and top_j", by_context), ("kl-k", "KL by number of facts", by_k),
                 ("kl-cost", "KL against what encoding costs", by_cost)] + plots
    written = []
    for name, caption, plot in plots:
        figure = plot(pyplot, result)
        if figure is not None:
            file = f"{stem}-{name}.svg"
            figure.savefig(folder / file, format="svg", metadata={"Date": None})
            pyplot.close(figure)
            written.append((file, caption))
    return written
