"""Commands with what they print, as documents show them."""

from __future__ import annotations

import re


def transcripts(text: str) -> list[tuple[str, str]]:
    """Each command in a block of console text, with what is shown below it."""
    return re.findall(r"```console\n\$ kvspec ([^\n]*)\n(.*?)\n```", text, flags=re.DOTALL)


def steady(text: str) -> list[str]:
    """Lines without what depends on the machine, or on what was judged before."""
    text = re.sub(r"[\d,]+(?: \w+)?/s\b|\d+ known from before; |\b[\d.]+ s\b", "#", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines()]


def same(printed: str, shown: str) -> bool:
    """Whether this was printed; a line of three dots stands for any lines."""
    real, told = steady(printed), steady(shown)
    if "..." not in told:
        return real == told
    cut = told.index("...")
    rest = len(told) - cut - 1
    return real[:cut] == told[:cut] and real[len(real) - rest :] == told[cut + 1 :]
