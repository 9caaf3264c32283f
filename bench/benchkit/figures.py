"""How figures are written in tables."""


def shown(value, unit) -> str:
    """A figure with a unit that fits it."""
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit == "bytes":
        return scaled(value, ("B", "KiB", "MiB", "GiB"), 1024)
    if unit == "bytes per second":
        return scaled(value, ("B/s", "KB/s", "MB/s", "GB/s"), 1000)
    if unit == "count" and value != int(value):
        return digits(value)
    return f"{value:,.0f}{'/s' if unit == 'per second' else ''}"


def seconds(value) -> str:
    """A time: three digits are as many as such a figure has."""
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")):
        if value * factor >= 1 or name == "ns":
            return f"{digits(value * factor)} {name}"
    return "0 s"


def scaled(value, names, base) -> str:
    """A size or a rate."""
    if value == 0:
        return f"0 {names[0]}"
    for name in names:
        if value < base or name == names[-1]:
            return f"{digits(value)} {name}"
        value /= base
    return ""


def digits(value) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
