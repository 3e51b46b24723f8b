"""The report as one HTML page that loads nothing: no script, no font, no picture from elsewhere.

Every text is escaped: a system's name and its error messages come from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from string import Template
from typing import Final

from pytest_gittrix import __version__
from pytest_gittrix.conformance.base.clause import FAMILIES
from pytest_gittrix.conformance.report import Finding, Status, SystemReport

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
.not_claimed, .skipped, .not_run { color: var(--other); }
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
.reason { background: var(--tint); border-left: 3px solid var(--line); padding: .25rem .6rem; margin: .25rem 0; min-width: 0; }
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
<h1>$name</h1>
<p>Level reached: <strong>$verdict</strong></p>
$untested
<div class="bar" role="img" aria-label="$spoken">$bar</div>
<ul class="legend">$legend</ul>
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
        verdict=escape(system.verdict),
        untested=untested,
        spoken=", ".join(f"{counts[status]} {status}" for status in used),
        bar="".join(f'<span class="{_style(status)}" style="flex:{counts[status]}"></span>' for status in used),
        legend="".join(f'<li class="{_style(status)}"><strong>{counts[status]}</strong> {status}</li>' for status in used),
        urgent=_part("Broken", system.of(Status.BROKEN)) + _part("Waived", system.of(Status.WAIVED)),
        heads="".join(f'<th scope="col">{status}</th>' for status in columns),
        rows="\n".join(_rows(system, columns)),
        families="\n".join(_families(system)),
    )


def _rows(system: SystemReport, used: list[Status]) -> Iterator[str]:
    for family, counts in system.families.items():
        cells = "".join(f'<td class="{_style(status)}">{counts[status]}</td>' if counts[status] else "<td></td>" for status in used)
        yield f'<tr><td><a href="#{_anchor(system, family)}">{_title(family)}</a></td>{cells}</tr>'
    totals = "".join(f"<td>{sum(counts[status] for counts in system.families.values()) or ''}</td>" for status in used)
    yield f"<tr><td>all</td>{totals}</tr>"


def _families(system: SystemReport) -> Iterator[str]:
    for family in system.families:
        members = tuple(one for one in system.findings if one.clause.family == family)
        yield _part(_title(family), members, _anchor(system, family))


def _part(title: str, findings: tuple[Finding, ...], anchor: str = "") -> str:
    if not findings:
        return ""
    named = f' id="{anchor}"' if anchor else ""
    return f'<h2{named}>{title}</h2>\n<ul class="clauses">\n' + "\n".join(map(_item, findings)) + "\n</ul>"


def _item(found: Finding) -> str:
    clause = found.clause
    parts = [f"<code>{escape(clause.code)}</code>", f'<span class="status {_style(found.status)}">{found.status}</span>']
    parts.append(f"<span>{escape(clause.promise)}</span>")
    if clause.why:
        parts.append(f'<span class="soft">{_marked(clause.why)}</span>')
    if found.reason:
        reason = f"needs {found.reason}" if found.status is Status.NOT_CLAIMED else found.reason
        parts.append(f'<span class="reason">{escape(reason)}</span>')
    if found.replay:
        parts.append(f'<span class="soft">again: <code>{escape(found.replay)}</code></span>')
    return f"<li>{''.join(parts)}</li>"


def _marked(text: str) -> str:
    """The text, escaped, with everything between double backquotes marked as code."""
    pieces = escape(text).split("``")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))


def _title(family: str) -> str:
    return escape(f"{family}: {FAMILIES[family]}" if family in FAMILIES else family)


def _anchor(system: SystemReport, family: str) -> str:
    slug = "".join(char if char.isascii() and char.isalnum() else f"-{ord(char):x}-" for char in system.name)
    return f"{slug}-{escape(family)}"


def _style(status: Status) -> str:
    return status.replace(" ", "_")
