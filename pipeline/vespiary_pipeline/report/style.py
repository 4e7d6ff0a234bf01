"""The look of the page: one style sheet, for screens light and dark, phones and paper.

Owns: colours and layout. The colours of series differ in lightness too, so that they stay apart for
the colour-blind; all reach 3:1 against the page, and text reaches 4.5:1 (a test counts). Nothing is
loaded. Called by `page`.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "page": "#ffffff",
    "ink": "#1b1f24",
    "quiet": "#5a626c",
    "line": "#d8dde3",
    "shade": "#f4f6f8",
    "s1": "#215f92",
    "s2": "#a8321a",
    "s3": "#1f7a66",
    "s4": "#a02bc4",
    "s5": "#b48a11",
    "s6": "#868d96",
    "l0": "#6b1408",
    "l1": "#b5461a",
    "l2": "#b48c1e",
    "l3": "#4d8fa0",
    "l4": "#1b4f7a",
    "bad": "#b3261e",
    "warn": "#8a5a00",
    "note": "#215f92",
}
"""Colours on white: series, live ratio from none to all, levels of findings."""

DARK: Final = {
    "page": "#15181d",
    "ink": "#e6e9ed",
    "quiet": "#a3abb5",
    "line": "#343a43",
    "shade": "#1d2127",
    "s1": "#8dbcf5",
    "s2": "#d0562f",
    "s3": "#35d193",
    "s4": "#b45fd6",
    "s5": "#e8c843",
    "s6": "#7d858f",
    "l0": "#d0563f",
    "l1": "#dd8a4a",
    "l2": "#d9c25e",
    "l3": "#5fb58c",
    "l4": "#2f9a7c",
    "bad": "#ff8a80",
    "warn": "#f0b95a",
    "note": "#8dbcf5",
}
"""Colours on the dark page."""

SERIES: Final = ("s1", "s2", "s3", "s4", "s5", "s6")
"""Styles of series; the last is for the rest."""


def _colours(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


_FILLS: Final = "\n".join(
    f".{name} {{ fill: var(--{name}); }}" for name in (*SERIES, "l0", "l1", "l2", "l3", "l4")
)

CSS: Final = f"""
:root {{ color-scheme: light dark; {_colours(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_colours(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem; padding: 0 1rem;
  background: var(--page); color: var(--ink); }}
h1 {{ font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; margin: 0 0 .3rem; }}
h3 {{ font-size: .95rem; margin: 1.2rem 0 .3rem; }}
p {{ margin: .3rem 0 .8rem; max-width: 52rem; overflow-wrap: anywhere; }}
a {{ color: var(--note); }}
a:focus-visible, summary:focus-visible {{ outline: 2px solid var(--note); outline-offset: 2px; }}
.quiet {{ color: var(--quiet); }}
.lead {{ font-size: 1.02rem; }}
nav {{ margin: 1rem 0; }}
nav a {{ display: inline-block; margin: .15rem 1rem .15rem 0; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .75rem;
  margin: 1.2rem 0; }}
dl div {{ border-left: .2rem solid var(--line); padding-left: .6rem; }}
dt {{ font-size: .8rem; color: var(--quiet); }}
dd {{ margin: 0; font-size: 1.35rem; line-height: 1.25; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }}
dd small {{ display: block; font-size: .8rem; color: var(--quiet); }}
ol.findings {{ list-style: none; margin: 0; padding: 0; }}
ol.findings li {{ border-left: .3rem solid var(--line); background: var(--shade);
  padding: .55rem .8rem; margin: .5rem 0; overflow-wrap: anywhere; }}
ol.findings li.bad {{ border-color: var(--bad); }}
ol.findings li.warn {{ border-color: var(--warn); }}
ol.findings li.note {{ border-color: var(--note); }}
ol.findings p {{ margin: 0; max-width: none; }}
ol.findings .level {{ font-size: .75rem; font-weight: 600; text-transform: uppercase;
  letter-spacing: .04em; margin-right: .5rem; }}
.bad .level {{ color: var(--bad); }}
.warn .level {{ color: var(--warn); }}
.note .level {{ color: var(--note); }}
code {{ font: .88em ui-monospace, monospace; background: var(--page); padding: .1rem .3rem;
  border: 1px solid var(--line); border-radius: .2rem; overflow-wrap: anywhere; }}
section {{ border-top: 1px solid var(--line); padding-top: 1.2rem; margin-top: 1.8rem; }}
svg {{ display: block; width: 100%; height: auto; }}
.wide svg {{ max-width: 64rem; }}
.narrow {{ display: none; }}
ul.legend {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0;
  margin: .5rem 0; font-size: .85rem; }}
ul.legend li {{ display: flex; align-items: center; gap: .4rem; min-width: 0;
  overflow-wrap: anywhere; }}
svg.swatch {{ width: .8rem; height: .8rem; flex: none; }}
details {{ margin: .8rem 0; }}
summary {{ cursor: pointer; color: var(--quiet); font-size: .9rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .88rem; }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }}
th {{ font-weight: 600; color: var(--quiet); }}
td {{ overflow-wrap: break-word; max-width: 26rem; }}
table td:first-child {{ min-width: 7rem; }}
th.number, td.number {{ text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }}
footer {{ margin-top: 2rem; font-size: .85rem; color: var(--quiet); }}
.label {{ font: 12px system-ui, sans-serif; fill: var(--quiet); }}
.strong {{ fill: var(--ink); font-variant-numeric: tabular-nums; }}
.axis {{ stroke: var(--quiet); }}
.grid {{ stroke: var(--line); }}
.over {{ fill: none; stroke: var(--ink); stroke-width: 1.6; stroke-linejoin: round; }}
.overkey {{ fill: var(--ink); }}
.ghost {{ fill: transparent; }}
g:hover > .ghost {{ fill: var(--ink); fill-opacity: .08; }}
.hollow {{ fill: var(--shade); stroke: var(--s6); stroke-dasharray: 3 2; }}
.pin {{ fill: var(--page); stroke: var(--ink); stroke-width: 1.5; }}
{_FILLS}
@media screen and (max-width: 40rem) {{
  body {{ margin: 1rem auto; }}
  .wide {{ display: none; }}
  .narrow {{ display: block; }}
  dl {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
  dd {{ font-size: 1.15rem; }}
  .scroll table {{ width: max-content; min-width: 100%; }}
  td {{ max-width: 16rem; }}
}}
@media print {{
  body {{ margin: 0; max-width: none; font-size: 10pt; }}
  section, li, svg, tr {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
  nav, details:not([open]) {{ display: none; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""
"""The style sheet."""
