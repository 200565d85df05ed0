"""Small tables for notebooks: what `_repr_html_` of pools, queues and snapshots returns.

Names and values come from users and from the senders of their work: everything is escaped, and a
long value is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harn.escaping import one_line

LONGEST = 200
"""Characters of one value that are shown."""
MOST_ROWS = 50


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table under *title*; of many rows the first fifty, and how many there are.

    >>> html_table("a pool", ["name"], [["<b>"]])
    '<table><caption>a pool</caption><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    every = list(rows)
    hidden = len(every) - MOST_ROWS
    caption = f"{title} ({MOST_ROWS} of {len(every)} rows)" if hidden > 0 else title
    head = "".join(f"<th>{shown(each)}</th>" for each in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{shown(value)}</td>' for value in row)}</tr>"
        for row in every[:MOST_ROWS]
    )
    return f"<table><caption>{shown(caption)}</caption><tr>{head}</tr>{body}</table>"


def html_fields(title: str, fields: Mapping[str, object]) -> str:
    """Return a table with one line for each field.

    >>> html_fields("a queue", {"ready": 3})
    '<table><caption>a queue</caption><tr><th>ready</th></tr><tr><td>3</td></tr></table>'
    """
    return html_table(title, list(fields), [list(fields.values())])


def shown(value: object) -> str:
    """Return *value* as escaped text, at most `LONGEST` characters.

    >>> shown("<script>")
    '&lt;script&gt;'
    >>> shown(None)
    ''
    """
    if value is None:
        return ""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # a value whose __str__ raises must not spoil the whole table
        text = f"a {type(value).__name__} that cannot be shown"
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    from html import escape  # only notebooks need its table of entities

    return escape(one_line(text), quote=True)
