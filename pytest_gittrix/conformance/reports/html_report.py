"""The report as one HTML page that loads nothing: no script, no font, no picture from elsewhere.

Every text is escaped: a system's name and its error messages come from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from string import Template
from typing import Final

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, Finding, SystemReport

_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Conformance: $title</title>
<style>
:root { --ink: #1c2024; --soft: #5c6570; --line: #dfe3e8; --paper: #fff; --tint: #f5f7f9;
  --kept: #1a7f4b; --broken: #c0272d; --waived: #946200; --other: #6b7480; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4af; --line: #343b43; --paper: #15191d; --tint: #1d2328;
  --kept: #4cc38a; --broken: #ff7b7b; --waived: #e2ab3b; --other: #98a2ad; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0; }
a { color: inherit; }
code { font: .875em ui-monospace, monospace; }
section + section { border-top: 2px solid var(--line); margin-top: 3rem; padding-top: 2rem; }
.soft { color: var(--soft); }
.bar { display: flex; height: .6rem; margin: 1rem 0 .5rem; border-radius: .3rem; overflow: hidden; background: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: 0; list-style: none; }
.kept { color: var(--kept); } .broken { color: var(--broken); } .waived { color: var(--waived); }
.incomplete_refusal, .documented, .as_git { color: var(--waived); }
.not_claimed, .skipped, .not_run, .inconclusive, .no_verdict { color: var(--other); }
.bar span { background: currentColor; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
th { color: var(--soft); font-weight: 500; }
tr:last-child td { font-weight: 600; border-bottom: 0; }
.clauses { list-style: none; margin: 0; padding: 0; }
.clauses li { display: grid; grid-template-columns: 4.5rem 6.5rem 1fr; gap: 0 .75rem; align-items: baseline; padding: .5rem 0;
  border-bottom: 1px solid var(--line); }
.clauses li > :nth-child(n + 4) { grid-column: 3; }
.clauses .status { font-weight: 600; }
.clauses .soft { font-size: .925rem; }
.reason, pre { background: var(--tint); border-left: 3px solid var(--line); padding: .25rem .6rem; margin: .25rem 0; min-width: 0; }
.reason { white-space: pre-wrap; overflow-wrap: anywhere; font: .875em/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; font: .8rem/1.45 ui-monospace, monospace; }
.headline { font-size: 1.35rem; line-height: 1.3; margin: .25rem 0 .75rem; }
.finding { border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: .3rem; margin: .75rem 0;
  padding: .6rem .9rem; }
.finding > * { color: var(--ink); }
.finding h3 { font-size: 1.05rem; line-height: 1.35; margin: 0 0 .25rem; }
.finding .clauses { margin-top: .5rem; }
.finding .clauses li { border-bottom: 0; border-top: 1px solid var(--line); }
.tag { display: inline-block; font-size: .8rem; font-weight: 600; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .55rem;
  margin-right: .35rem; }
summary { cursor: pointer; padding: .25rem 0; }
@media (max-width: 40rem) {
  .clauses li { grid-template-columns: auto 1fr; }
  .clauses li > :nth-child(n + 3) { grid-column: 1 / -1; }
  th, td { padding: .35rem; font-size: .875rem; }
}
</style>
</head>
<body>
$systems
<p class="soft">pytest-gittrix $version</p>
</body>
</html>
""")

_SYSTEM: Final = Template("""\
<section>
<p class="headline"><strong>$headline</strong></p>
<h1>$name</h1>
$properties
$verdict
$untested
<div class="bar" role="img" aria-label="$spoken">$bar</div>
<ul class="legend">$legend</ul>
$findings
<h2>Families</h2>
<div class="wide"><table>
<thead><tr><th scope="col">family</th>$heads</tr></thead>
<tbody>
$rows
</tbody>
</table></div>
$urgent
$families
</section>""")


def page(systems: Iterable[SystemReport]) -> str:
    """The HTML of a report on some systems."""
    shown = [*systems]
    title = ", ".join(system.name for system in shown)
    return _PAGE.substitute(title=escape(title), systems="\n".join(map(_system, shown)), version=escape(__version__))


def _system(system: SystemReport) -> str:
    counts = {status: len(system.of(status)) for status in Status}
    used = [status for status in Status if counts[status]]
    columns = [status for status in used if any(of_family[status] for of_family in system.families.values())]
    untested = f'<p class="broken">Declared, and never tested: {escape(", ".join(system.untested))}</p>' if system.untested else ""
    return _SYSTEM.substitute(
        name=escape(system.name),
        headline=escape(system.headline),
        properties=_properties(system),
        verdict=f"<p>Level reached: <strong>{escape(system.verdict)}</strong></p>" if system.has_levels else "",
        untested=untested,
        spoken=", ".join(f"{counts[status]} {status}" for status in used),
        bar="".join(f'<span class="{_style(status)}" style="flex:{counts[status]}"></span>' for status in used),
        legend="".join(f'<li class="{_style(status)}"><strong>{counts[status]}</strong> {status}</li>' for status in used),
        findings=_findings(system.findings),
        urgent=_part("Waived", system.of(Status.WAIVED, Status.DOCUMENTED)),
        heads="".join(f'<th scope="col">{status}</th>' for status in columns),
        rows="\n".join(_rows(system, columns)),
        families="\n".join(_families(system)),
    )


def _properties(system: SystemReport) -> str:
    facts = ", ".join(f"{name}: {value}" for name, value in system.properties.items())
    return f'<p class="soft">{escape(facts)}</p>' if facts else ""


def _rows(system: SystemReport, used: list[Status]) -> Iterator[str]:
    for family, counts in system.families.items():
        cells = "".join(f'<td class="{_style(status)}">{counts[status]}</td>' if counts[status] else "<td></td>" for status in used)
        yield f'<tr><td><a href="#{_anchor(system, family)}">{_title(system, family)}</a></td>{cells}</tr>'
    totals = "".join(f"<td>{sum(counts[status] for counts in system.families.values()) or ''}</td>" for status in used)
    yield f"<tr><td>all</td>{totals}</tr>"


def _families(system: SystemReport) -> Iterator[str]:
    for family in system.families:
        members = tuple(one for one in system.outcomes if one.clause.family == family)
        yield _part(_title(system, family), members, _anchor(system, family))


def _findings(findings: tuple[Finding, ...]) -> str:
    return "\n".join(["<h2>Faults, the worst first</h2>", *map(_finding, findings)]) if findings else ""


def _finding(found: Finding) -> str:
    tags = f'<span class="tag {_style(found.status)}">{found.status}</span>'
    if found.loses_work:
        tags += '<span class="tag broken">loses work</span>'
    losses = "".join(f'<p class="soft">{_marked(one)}</p>' for one in found.losses[:1])
    script = f"<details><summary>A script that shows it</summary><pre>{escape(found.script)}</pre></details>" if found.script else ""
    clauses = '<ul class="clauses">' + "".join(map(_failed, found.outcomes)) + "</ul>"
    title = escape(found.title[:1].upper() + found.title[1:])
    return f'<article class="finding {_style(found.status)}"><h3>{title}</h3><p>{tags}</p>{losses}{script}{clauses}</article>'


def _failed(outcome: ClauseOutcome) -> str:
    return _item(outcome, with_why=False)


def _part(title: str, outcomes: tuple[ClauseOutcome, ...], anchor: str = "") -> str:
    if not outcomes:
        return ""
    named = f' id="{anchor}"' if anchor else ""
    return f'<h2{named}>{title}</h2>\n<ul class="clauses">\n' + "\n".join(map(_brief, outcomes)) + "\n</ul>"


def _brief(outcome: ClauseOutcome) -> str:
    """A clause in the list of its family: what failed is told in full above."""
    return _item(outcome, in_full=outcome.status not in FAILING)


def _item(found: ClauseOutcome, *, with_why: bool = True, in_full: bool = True) -> str:
    clause = found.clause
    parts = [f"<code>{escape(clause.code)}</code>", f'<span class="status {_style(found.status)}">{found.status}</span>']
    parts.append(f"<span>{escape(clause.promise)}</span>")
    if clause.why and with_why:
        parts.append(f'<span class="soft">{_marked(clause.why)}</span>')
    if found.reason and in_full:
        reason = f"needs {found.reason}" if found.status is Status.NOT_CLAIMED else found.reason
        parts.append(f'<span class="reason">{escape(reason)}</span>')
    if found.replay and in_full:
        parts.append(f'<span class="soft">again: <code>{escape(found.replay)}</code></span>')
    return f"<li>{''.join(parts)}</li>"


def _marked(text: str) -> str:
    """The text, escaped, with everything between double backquotes marked as code."""
    pieces = escape(text).split("``")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))


def _title(system: SystemReport, family: str) -> str:
    return escape(f"{family}: {system.titles[family]}" if family in system.titles else family)


def _anchor(system: SystemReport, family: str) -> str:
    slug = "".join(char if char.isascii() and char.isalnum() else f"-{ord(char):x}-" for char in system.name)
    return f"{slug}-{escape(family)}"


def _style(status: Status) -> str:
    return status.replace(" ", "_")
