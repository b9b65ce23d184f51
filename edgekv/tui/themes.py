"""Two themes beside Textual's own: one of high contrast, one whose states differ without red."""

from textual.theme import Theme

THEMES = (
    Theme(
        name="high-contrast",
        primary="#ffff00",
        secondary="#00ffff",
        accent="#00ffff",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#1a1a1a",
        boost="#262626",
        success="#00ff00",
        warning="#ffff00",
        error="#ff8080",
        dark=True,
    ),
    # The hues of Okabe and Ito, which people of every colour vision can tell apart.
    Theme(
        name="colour-blind",
        primary="#56b4e9",
        secondary="#0072b2",
        accent="#cc79a7",
        foreground="#f0f0f0",
        background="#101010",
        surface="#1a1a1a",
        panel="#262626",
        success="#56b4e9",
        warning="#e69f00",
        error="#d55e00",
        dark=True,
    ),
)
