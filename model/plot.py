"""A picture of a replay: who had the blocks, what was hit and evicted, when requests were preempted."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvspec.model.replay import ReplayReport

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = npt.NDArray[np.int64]

MAX_POINTS = 2000
"""More steps than this are thinned out before they are drawn."""

_USED, _CACHED, _FREE = "#4477aa", "#ccbb44", "#dddddd"
_HITS, _EVICTIONS, _PREEMPTIONS, _WAITING = "#228833", "#aa3377", "#cc3311", "#ee7733"


class PlotError(Exception):
    """A picture that cannot be written."""


def plot_replay(report: ReplayReport, path: str | Path, *, title: str = "", overwrite: bool = False) -> None:
    """Draw a replay as a PNG file of three parts over virtual time.

    The parts are occupancy (blocks used, idle in the cache, free), requests (waiting, running, marks for preemptions),
    and totals (tokens hit, evictions). A part that was not observed says so.

    Raises:
        PlotError: the file exists and `overwrite` is false, or it cannot be written.
    """
    if Path(path).exists() and not overwrite:
        raise PlotError(f"{path}: the file exists; expected a new name, or overwriting asked for")
    picture = draw_replay(report, title)
    try:
        with Path(path).open("wb" if overwrite else "xb") as file:
            file.write(picture)
    except OSError as error:
        raise PlotError(f"{path}: cannot be written ({error.strerror or error})") from error


def draw_replay(report: ReplayReport, title: str = "") -> bytes:
    """The picture of `plot_replay` as the bytes of a PNG file."""
    picture = BytesIO()
    _draw(report, title).savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _draw(report: ReplayReport, title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    FigureCanvasAgg(figure)
    blocks, requests, totals = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 2])
    chosen = _chosen(len(report.series.time_ms))
    seconds = np.asarray(report.series.time_ms, dtype=np.float64)[chosen] / 1000
    _draw_blocks(blocks, report, seconds, chosen)
    _draw_requests(requests, report, seconds, chosen)
    _draw_totals(totals, report, seconds, chosen)
    totals.set_xlabel("virtual time, seconds")
    blocks.set_title(title or _default_title(report), loc="left", fontsize=11)
    return figure


def _default_title(report: ReplayReport) -> str:
    config, statistics = report.config, report.statistics
    ending = ", interrupted" if statistics.interrupted else ", stopped by a violation" if statistics.stopped else ""
    return (
        f"{statistics.finished} of {statistics.arrived} requests finished on {config.num_blocks - 1:,} blocks of "
        f"{config.block_size} tokens, {statistics.violations} violations{ending}"
    )


def _chosen(length: int) -> Numbers:
    """Which steps are drawn: all, or about `MAX_POINTS` of them, first and last included."""
    return np.unique(np.linspace(0, max(length - 1, 0), min(length, MAX_POINTS)).astype(np.int64))


def _picked(values: list[int], chosen: Numbers) -> Numbers:
    return np.asarray(values, dtype=np.int64)[chosen]


def _not_observed(axes: Axes, what: str) -> None:
    axes.text(0.5, 0.5, f"{what}: not observed", transform=axes.transAxes, ha="center", va="center", color="#555555")


def _legend(axes: Axes, *more: Axes) -> None:
    """One legend for an axes and those that share its frame, in front of all of them."""
    handles: list[Artist] = []
    labels: list[str] = []
    for part in (axes, *more):
        some_handles, some_labels = part.get_legend_handles_labels()
        handles += some_handles
        labels += some_labels
    if handles:
        front = more[-1] if more else axes
        front.legend(handles, labels, loc="upper left", framealpha=0.9, fontsize=9, ncols=len(handles))


def _draw_blocks(axes: Axes, report: ReplayReport, seconds: npt.NDArray[np.float64], chosen: Numbers) -> None:
    series = report.series
    axes.set_ylabel("blocks")
    axes.set_ylim(0, (report.config.num_blocks - 1) * 1.12)
    if not series.cached:
        _not_observed(axes, "occupancy")
        return
    layers = [_picked(values, chosen) for values in (series.used, series.cached, series.free)]
    labels = ["used by sequences", "idle in the cache", "free"]
    axes.stackplot(seconds, *layers, labels=labels, colors=[_USED, _CACHED, _FREE], step="post", linewidth=0)
    axes.margins(x=0)
    _legend(axes)


def _draw_requests(axes: Axes, report: ReplayReport, seconds: npt.NDArray[np.float64], chosen: Numbers) -> None:
    """Waiting on the left scale, running on the right one, a mark below for each step that preempted."""
    series = report.series
    axes.set_ylabel("requests waiting", color=_WAITING)
    axes.plot(seconds, _picked(series.waiting, chosen), color=_WAITING, label="waiting", drawstyle="steps-post")
    right = axes.twinx()
    right.set_ylabel("requests running", color=_USED)
    running = _picked(series.running, chosen)
    right.plot(seconds, running, color=_USED, label="running", drawstyle="steps-post", linewidth=0.8)
    steps = np.flatnonzero(np.diff(np.asarray(series.preemptions, dtype=np.int64), prepend=0))
    if steps.size:
        label = f"preemptions ({report.statistics.preemptions})"
        times = np.asarray(series.time_ms, dtype=np.float64)[steps] / 1000
        (marks,) = right.plot(times, np.full(len(times), -0.06), "|", color=_PREEMPTIONS, label=label, markersize=7)
        marks.set_transform(axes.get_xaxis_transform())
        marks.set_clip_on(False)
    _scale(axes, right)


def _draw_totals(axes: Axes, report: ReplayReport, seconds: npt.NDArray[np.float64], chosen: Numbers) -> None:
    """Tokens hit on the left scale, evictions on the right one."""
    series, statistics = report.series, report.statistics
    axes.set_ylabel("tokens hit, total", color=_HITS)
    label = f"{statistics.hit_tokens:,} of {statistics.prompt_tokens:,} prompt tokens hit ({statistics.hit_rate:.1%})"
    axes.plot(seconds, _picked(series.hit_tokens, chosen), color=_HITS, label=label)
    right = axes.twinx()
    if series.evictions:
        right.set_ylabel("evictions, total", color=_EVICTIONS)
        label = f"{statistics.evictions:,} evictions"
        right.plot(seconds, _picked(series.evictions, chosen), color=_EVICTIONS, linestyle="--", label=label)
    else:
        right.set_ylabel("evictions: not observed", color=_EVICTIONS)
        right.tick_params(right=False, labelright=False)
    _scale(axes, right)


def _scale(axes: Axes, right: Axes) -> None:
    """Both scales from 0, with thousands as k and room for the legend."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for part in (axes, right):
        part.set_ylim(0, max(part.get_ylim()[1], 4) * 1.2)
        part.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        part.yaxis.set_major_formatter(EngFormatter(sep=""))
        part.margins(x=0)
    _legend(axes, right)
