"""PreflightReport: everything that one preflight found, to read in a terminal or a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass

from trainvitals.preflight.finding import Finding


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The findings, errors first; `notes` say what could not be looked at, and why.

    It is true, and `ok`, where there is no error. Warnings do not count: `findings` holds both.
    """

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What breaks the training, or cannot be right."""
        return tuple(one for one in self.findings if one.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is likely to be trouble."""
        return tuple(one for one in self.findings if one.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def __bool__(self) -> bool:
        return self.ok

    @property
    def headline(self) -> str:
        """The result in one line."""
        if not self.findings:
            return "preflight: nothing found"
        errors, warnings = len(self.errors), len(self.warnings)
        counts = [_count(errors, "error")] if errors else []
        counts += [_count(warnings, "warning")] if warnings else []
        return f"preflight: {' and '.join(counts)}"

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.headline, *map(str, self.findings), *notes])

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        rows = "".join(map(_row, self.findings))
        table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        notes = "".join(f"<p><small>note: {html.escape(note)}</small></p>" for note in self.notes)
        return f"<div><p><b>{html.escape(self.headline)}</b></p>{table}{notes}</div>"


def _row(finding: Finding) -> str:
    snippet = f"<pre>{html.escape(finding.snippet)}</pre>" if finding.snippet else ""
    source = f"<br><code>{html.escape(finding.source)}</code>" if finding.source else ""
    cells = (
        f"<b>{finding.severity}</b><br><code>{finding.code}</code>",
        f"{html.escape(finding.what)}<br><small>{html.escape(finding.where)}{source}</small>",
        f"{html.escape(finding.advice)}{snippet}",
    )
    styled = "".join(f'<td style="text-align:left;vertical-align:top">{cell}</td>' for cell in cells)
    return f"<tr>{styled}</tr>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
