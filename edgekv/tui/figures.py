"""Figures for people, short enough for one line of a narrow terminal."""


def thousands(number: int) -> str:
    """ "812", "3.1k", "128k", "1.2M"."""
    if number < 1000:
        return str(number)
    scale, unit = (1000, "k") if number < 999_500 else (1_000_000, "M")
    value = number / scale
    digits = f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")
    return digits + unit


def plural(number: int, noun: str) -> str:
    """ "1 token", "1,234 tokens"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(nbytes: float) -> str:
    """Bytes in decimal units: "98 MB", "1.8 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            value = nbytes / scale
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{nbytes:.0f} B"


def age(seconds: float) -> str:
    """How long ago: "now", "5 min", "3 h", "2 days", "7 weeks"; a clock that went back is "now"."""
    for limit, scale, unit in (
        (60, 0, "now"),
        (3600, 60, "min"),
        (86_400, 3600, "h"),
        (14 * 86_400, 86_400, "days"),
    ):
        if seconds < limit:
            return f"{seconds / scale:.0f} {unit}" if scale else unit
    return f"{seconds / (7 * 86_400):.0f} weeks"
