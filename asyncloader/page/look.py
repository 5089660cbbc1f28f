"""How the page looks: its colours, in light and dark, and its style sheet."""

from __future__ import annotations

from ..stopwatch import (
    BATCHING,
    COLLATE,
    DECODE,
    PINNING,
    PROCESSOR,
    RECEIVING,
    RESTING,
    SAMPLER,
    SENDING,
    STARTING,
    STORE,
)

__all__ = ["STYLE", "STYLE_OF_SMALL", "colour_of"]

# Told apart by people who do not see red or green, by their lightness too (after Okabe and Ito, 2008), and
# each of at least 3:1 against the card that it lies on, but for the two of those who do nothing.
_STAGES = {
    STORE: ("#0f6cab", "#58aee8"),
    DECODE: ("#b36b00", "#f0b04a"),
    "own-1": ("#a63d82", "#e68ac4"),
    "own-2": ("#6a51b8", "#ab98ee"),
    "own-3": ("#7d6a1d", "#cdbd5f"),
    COLLATE: ("#00805c", "#3fc79c"),
    SENDING: ("#8a4b1f", "#d59a6c"),
    SAMPLER: ("#2b7a8c", "#7cc4d4"),
    RECEIVING: ("#8c4a4a", "#e09a9a"),
    PINNING: ("#4f6b2a", "#a9c47c"),
    PROCESSOR: ("#8f2d56", "#d983a6"),
    BATCHING: ("#56606e", "#98a3b3"),
    RESTING: ("#c6cad1", "#3f4653"),
    STARTING: ("#e6e7ea", "#272c35"),
}

_LIGHT = """
--page:#f6f6f3;--card:#fff;--ink:#1b1d22;--soft:#575c67;--line:#e3e3de;--accent:#0f6cab;--wash:#eaf2f9;
--bad:#b3261e;color-scheme:light dark;"""

_DARK = """
--page:#0e1014;--card:#171a20;--ink:#eceef2;--soft:#a4abb8;--line:#2a2f39;--accent:#58aee8;--wash:#16283a;
--bad:#ff8a80;"""


def _colours(place: int) -> str:
    return "".join(f"--{stage}:{colours[place]};" for stage, colours in _STAGES.items())


def colour_of(stage: str, own: dict[str, int]) -> str:
    """The name of a stage's colour.

    Args:
        stage: As it is told.
        own: The numbers of the user's stages; those that are new get the next ones.
    """
    if stage in _STAGES:
        return stage
    return f"own-{own.setdefault(stage, len(own)) % 3 + 1}"


_TOKENS = f":root{{{_LIGHT}{_colours(0)}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}{_colours(1)}}}}}"

STYLE = (
    _TOKENS
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 Inter,system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}
header p{margin:0;color:var(--soft);font-size:13px}
.loader{font:12px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
h1{font-size:clamp(26px,5vw,40px);line-height:1.15;letter-spacing:-.02em;margin:10px 0 12px;font-weight:680;
overflow-wrap:anywhere}
h2{font-size:15px;font-weight:640;margin:0;letter-spacing:-.005em}
header .verdict{font-size:16px;margin:0 0 14px;max-width:75ch}
header .advice{border-left:3px solid var(--accent);background:var(--wash);border-radius:0 8px 8px 0;
padding:10px 14px;margin:0 0 28px;max-width:85ch;color:var(--ink);font-size:15px}
.advice b{font-weight:640}
.tiles{display:grid;grid-template-columns:repeat(6,minmax(0,1fr));gap:12px;margin:0 0 12px;padding:0}
.tiles div,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tiles div{padding:12px 16px;display:flex;flex-direction:column-reverse;justify-content:flex-end}
dt{color:var(--soft);font-size:12.5px}dd{margin:0;font-size:23px;font-weight:640;letter-spacing:-.015em}
dd small{font-size:13px;font-weight:500;color:var(--soft);letter-spacing:0}
.cards{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:12px}
.card{padding:18px 20px 12px;margin:0;min-width:0;display:flex;flex-direction:column}
.wide{grid-column:1/-1}
.note{color:var(--soft);font-size:13px;margin:2px 0 10px}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;margin:0 0 12px;padding:0;list-style:none;font-size:12.5px;
color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.legend i{width:10px;height:10px;border-radius:3px;flex:none}
.frame{display:grid;grid-template-columns:auto minmax(0,1fr);grid-template-rows:190px 22px;margin-top:auto}
.wide .frame{grid-template-rows:220px 22px}
.y{display:flex;flex-direction:column-reverse;justify-content:space-between;text-align:right;padding-right:8px;
margin:-8px 0;font-size:11.5px;line-height:16px;color:var(--soft);white-space:nowrap;min-width:44px}
.x{grid-column:2;position:relative;font-size:11.5px;color:var(--soft)}
.x span{position:absolute;top:5px;transform:translateX(-50%);white-space:nowrap}
.x .first{transform:none}.x .last{transform:translateX(-100%)}
.area{position:relative}
svg{display:block;width:100%;height:100%;position:absolute;inset:0;overflow:visible}
svg .grid{stroke:var(--line);stroke-width:1}svg .base{stroke:var(--soft);stroke-width:1}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}svg .rule{stroke:var(--ink);stroke-width:1.25;
stroke-dasharray:4 3}
svg *{vector-effect:non-scaling-stroke}
.flag{position:absolute;top:-3px;font-size:11.5px;color:var(--ink);background:var(--card);padding:0 3px;
border-radius:4px;white-space:nowrap;transform:translateX(4px)}
.flag.left{transform:translateX(calc(-100% - 4px))}
.bars{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:8px 10px;align-items:center;
font-size:12.5px;margin:2px 0 10px}
.bars .bar{display:flex;height:18px;border-radius:5px;overflow:hidden;gap:1px;background:var(--line)}
.bars .who,.bars .much{color:var(--soft);white-space:nowrap}.bars .bar i{min-width:0}
.events{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:0 12px;align-items:center;
font-size:12.5px;margin:2px 0 0}.events .x{height:22px}
.events .row{position:relative;height:28px;border-bottom:1px solid var(--line)}
.events .row i{position:absolute;bottom:3px;width:5px;margin-left:-2.5px;border-radius:2px 2px 0 0;
background:var(--bad);min-height:4px}
.events .much{font-weight:640}
details{margin:10px 0 2px;font-size:12.5px;color:var(--soft)}
summary{cursor:pointer;width:max-content;border-radius:4px}
summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.scroll{overflow-x:auto;max-height:300px}
table{border-collapse:collapse;margin:6px 0;min-width:100%}
th,td{text-align:right;padding:3px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
td{font-weight:400}
th{color:var(--ink);font-weight:600}th:first-child,td:first-child{text-align:left;padding-left:0}
footer{color:var(--soft);font-size:12.5px;margin-top:24px}
@media(max-width:980px){.tiles{grid-template-columns:repeat(3,minmax(0,1fr))}}
@media(max-width:760px){main{padding:24px 14px 40px}.cards{grid-template-columns:minmax(0,1fr)}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.card{padding:14px 14px 8px}dd{font-size:20px}}
@media print{.card,.tiles div{break-inside:avoid}}
"""
    + "".join(f".f-{stage}{{fill:var(--{stage})}}.l-{stage}{{stroke:var(--{stage})}}" for stage in _STAGES)
    + "".join(f".b-{stage}{{background:var(--{stage})}}" for stage in _STAGES)
)

#: Of what a notebook shows, which has a page of its own around it: it styles what is below its class alone.
STYLE_OF_SMALL = (
    _TOKENS.replace(":root", ".asyncloader")
    + """
.asyncloader{background:var(--card);color:var(--ink);border:1px solid var(--line);border-radius:12px;
padding:14px 18px;max-width:760px;font:14px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}
.asyncloader p{margin:0 0 6px}.asyncloader .head{font-size:18px;font-weight:650}
.asyncloader .soft{color:var(--soft)}
.asyncloader .bar{display:flex;height:14px;border-radius:5px;overflow:hidden;gap:1px;margin:8px 0}
.asyncloader .key{display:inline-flex;align-items:center;gap:6px;margin-right:14px;font-size:12.5px;
color:var(--soft)}
.asyncloader .key i{width:10px;height:10px;border-radius:3px}
.asyncloader code{font:12px/1.5 ui-monospace,monospace;overflow-wrap:anywhere;color:inherit;background:none}
"""
    + "".join(f".asyncloader .b-{stage}{{background:var(--{stage})}}" for stage in _STAGES)
)
