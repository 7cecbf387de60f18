"""How numbers are said: one rounding, one plural, one way to write a time."""

DASH = "–"


def percent(value: float | None) -> str:
    """0.6145 -> "61.5". Rounded twice, lest the last bit of a sum decide how 3.85 is printed."""
    return DASH if value is None else f"{round(100 * value, 9):.1f}"


def signed(value: float) -> str:
    """A difference of shares in points, with its sign: "+5.9", "−0.3", "0.0"."""
    text = percent(abs(value))
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def count(number: int, noun: str, plural: str = "") -> str:
    """
    >>> [count(n, "image") for n in (0, 1, 1200)] + [count(2, "process", "processes")]
    ['0 images', '1 image', '1200 images', '2 processes']
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (8, 95, 4000, 200_000)]
    ['8 s', '1 min 35 s', '1 h 06 min', '2 d 7 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
