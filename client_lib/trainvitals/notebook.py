"""What a notebook shows of a reporter: one line with the link to the run's page."""

from __future__ import annotations

from html import escape

from trainvitals.identity import Identity


def as_html(identity: Identity) -> str:
    """Return that line; every text of the user's is escaped, and nothing in it runs."""
    name = escape(identity.name or identity.run_id)
    link = f'<a href="{escape(identity.dashboard_url)}" target="_blank" rel="noopener">{name}</a>'
    return f"<div>trainvitals: {link} in {escape(identity.project)}</div>"
