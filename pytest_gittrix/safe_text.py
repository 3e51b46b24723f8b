"""Text that an agent had a hand in, made safe to show: on terminals, in annotations and summaries, and on pages.

File names, outputs and messages can hold characters that steer a terminal (OSC 52 writes the clipboard) or reorder the text around them.
"""

from __future__ import annotations

from typing import Final

# Control characters but tab and newline, bytes that are not UTF-8, ends of lines that are no newline, and marks that reorder text.
_MARKS: Final = (0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_STEERING: Final = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *_MARKS, *range(0xDC80, 0xDD00))
VISIBLE: Final = {code: f"\\x{code & 0xFF:02x}" if code < 0xA0 or code >= 0xDC80 else f"\\u{code:04x}" for code in _STEERING}
"""Each character that steers, with the escape that is shown in its place; for ``str.translate``."""
ONE_LINE: Final = VISIBLE | {0x09: "\\t", 0x0A: "\\n"}
"""The same with tab and newline."""


def visible(text: str) -> str:
    """A text of several lines with every character that steers as an escape."""
    return text.translate(VISIBLE)


def visible_line(text: str) -> str:
    """A text on one line with every character that steers, tabs and newlines as escapes."""
    return text.translate(ONE_LINE)


def printable(text: str) -> str:
    """A text without blank lines at its ends, in which every unprintable character but the newline is escaped."""
    return "\n".join("".join(map(_escaped, line.rstrip())) for line in text.strip().splitlines())


def printable_line(text: str) -> str:
    """The same on one line."""
    return " ".join(printable(text).splitlines())


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")


def in_script(text: str) -> str:
    """A text of JSON that may stand in a script element: no browser finds the end of the element, or a comment, in it."""
    return text.replace("</", "<\\/").replace("<!", "\\u003c!")
