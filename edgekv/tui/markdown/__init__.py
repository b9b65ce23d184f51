"""Markdown that grows by the token: parsed from its last block on, drawn by one widget a message.

document.py   text -> blocks; what is finished is never parsed again
blocks.py     a block -> rows
inline.py     emphasis, code and links -> styled text
table.py      a table -> rows that fit a width
layout.py     a row -> lines of the screen
view.py       the widget
"""
