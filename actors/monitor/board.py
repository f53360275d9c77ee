"""A Grafana board, made of the table of metrics. Pure: a dictionary of what Grafana imports.

Each panel's expression is built from a declared metric: no panel draws anything else.
"""

from __future__ import annotations

from typing import Any

from penstock.actors.monitor.metric_table import BY_NAME, METRICS, Metric

_GRAFANA_UNITS = {"bytes": "bytes", "seconds": "s", "ratio": "percentunit", "bool": "bool"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
# Constants, which no graph can show.
_NOT_DRAWN = frozenset({"penstock_build_info", "penstock_start_time_seconds"})
_QUANTILES = (0.5, 0.99)


def expressions(metric: Metric) -> list[tuple[str, str]]:
    """(PromQL, legend) of each line that a panel draws of a metric."""
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    if metric.kind == "counter":
        return [(f"rate({metric.name}[1m])", legend)]
    if metric.kind == "histogram":
        inner = f"sum by (le) (rate({metric.name}_bucket[1m]))"
        return [(f"histogram_quantile({q}, {inner})", f"p{q * 100:g}") for q in _QUANTILES]
    return [(metric.name, legend)]


def grafana_board() -> dict[str, Any]:
    """The board, as Grafana's import takes it; the import asks for the data source."""
    drawn = [metric for metric in METRICS if metric.name not in _NOT_DRAWN]
    return {
        "title": "Penstock",
        "uid": "penstock",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "__inputs": [
            {"name": "DS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
        ],
        "panels": [_panel(number, metric) for number, metric in enumerate(drawn)],
    }


def _panel(number: int, metric: Metric) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    unit = _GRAFANA_UNITS.get(metric.unit, "short")
    if metric.kind == "counter":
        unit = "Bps" if metric.unit == "bytes" else "cps"
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": metric.name.removeprefix("penstock_").removesuffix("_total").replace("_", " "),
        "description": metric.sentence,
        "datasource": {"type": "prometheus", "uid": "${DS}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(expressions(metric))
        ],
    }


assert {*BY_NAME} >= _NOT_DRAWN, "what is not drawn is declared"
