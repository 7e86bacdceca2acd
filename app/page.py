"""The page's style sheet and its little script; both are sent with the page, nothing comes from elsewhere."""

CSS = (
    """
.mm { --accepted: #1a7f4e; --accepted-soft: #dcf3e6; --bonus: #2457c5; --bonus-soft: #dfe8fd;
  --dropped: #9aa0ac; --speed: #1a7f4e; --bad: #b3261e; --bad-soft: #fde8e6; --line: #d7dae2; --ink: #1d2029;
  --soft: #5b6170; --card: #ffffff; --s0: #2457c5; --s1: #c2571a; --s2: #1a7f4e; --s3: #8a3fb0; --s4: #b8860b;
  --s5: #b3261e; color: var(--ink); font-size: 15px; line-height: 1.5; }
.dark .mm { --accepted: #5ad39a; --accepted-soft: #12382a; --bonus: #8fb0ff; --bonus-soft: #1c2c55;
  --dropped: #6f7685; --speed: #5ad39a; --bad: #ff9d94; --bad-soft: #43191a; --line: #3a3f4b; --ink: #eceef4;
  --soft: #a5acba; --card: #1b1e26; --s0: #8fb0ff; --s1: #ffa066; --s2: #5ad39a; --s3: #d49bf0; --s4: #e6c35c;
  --s5: #ff9d94; }
.gradio-container { max-width: 1280px !important; }
.mm-head h1 { font-size: 24px; margin: 0; color: var(--ink); }
.mm-head p { margin: 2px 0 0; color: var(--soft); }
.mm h3 { font-size: 15px; margin: 0 0 4px !important; color: var(--ink); }
.mm p { margin: 0 0 8px; color: var(--ink); }
.mm .hint, .mm .note, .mm .numbers { color: var(--soft); font-size: 13px; }
.mm .status { color: var(--soft); min-height: 1.5em; }
.mm .status.busy::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%;
  margin-right: 8px; background: var(--bonus); animation: mm-pulse 1s infinite alternate; }
@keyframes mm-pulse { to { opacity: .25; } }
.mm .error { color: var(--bad); background: var(--bad-soft); border-radius: 8px; padding: 8px 12px; }
.mm .panes { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; }
.mm .pane { border: 1px solid var(--line); border-radius: 10px; padding: 12px; background: var(--card);
  min-height: 148px; min-width: 0; }
.mm .answer { overflow-wrap: anywhere; white-space: pre-wrap; margin: 0; font-size: 16px; line-height: 1.75; }
.mm .draft { background: var(--accepted-soft); color: var(--accepted); border-radius: 3px; }
.mm .bonus { background: var(--bonus-soft); color: var(--bonus); border-radius: 3px; }
.mm .round { cursor: pointer; border-radius: 4px; padding: 1px 0; }
.mm .round:hover, .mm .round:focus-visible { outline: 2px solid var(--bonus); outline-offset: 1px; }
.mm .cursor { display: inline-block; width: 8px; height: 1em; background: var(--soft); vertical-align: -2px; }
.mm .finish { color: var(--soft); font-size: 12px; margin-left: 8px; white-space: nowrap; }
.mm .verdict { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px; margin: 4px 0 12px; }
.mm .speedup { font-size: 52px; line-height: 1; font-weight: 700; color: var(--speed); }
.mm .badge { border-radius: 999px; padding: 4px 12px; font-weight: 600; }
.mm .badge.yes { background: var(--accepted-soft); color: var(--accepted); }
.mm .badge.no { background: var(--bad-soft); color: var(--bad); }
.mm .turns { list-style: none !important; margin: 0; padding: 0 !important; max-height: 260px; overflow-y: auto; }
.mm .turns li { border-left: 3px solid var(--line); padding: 2px 0 4px 10px; margin: 0 0 8px; }
.mm .turns li > * { display: block; color: var(--ink); }
.mm .turns .note { color: var(--soft); }
.mm .scroll { overflow-x: auto; margin-bottom: 10px; }
.mm .scroll:focus-visible { outline: 2px solid var(--bonus); }
.mm table, .mm thead, .mm tbody, .mm tr { border: 0 !important; }
.mm table { border-collapse: collapse; font-size: 14px; width: 100%; color: var(--ink); }
.mm th, .mm td { padding: 5px 9px !important; text-align: right !important; border: 0 !important;
  border-bottom: 1px solid var(--line) !important; white-space: nowrap; color: var(--ink); background: none; }
.mm th:first-child, .mm td:first-child, .mm .reasons th:last-child, .mm .reasons td:last-child {
  text-align: left !important; }
.mm thead th { color: var(--soft); font-weight: 600; }
.mm tr.best th, .mm tr.best td { color: var(--speed); font-weight: 700; }
.mm tr.dropped td { color: var(--soft); }
.mm tr.accepted td { color: var(--accepted); }
.mm .legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0 !important; margin: 0 0 8px;
  font-size: 13px; color: var(--soft); }
.mm .legend li { display: flex; align-items: center; gap: 6px; margin: 0; color: var(--soft); }
.mm .swatch, .mm .key { display: inline-block; width: 14px; height: 10px; border-radius: 3px;
  border: 1px solid var(--line); }
.mm .key { height: 4px; border: 0; }
.mm svg text { fill: var(--ink); font-family: inherit; font-size: 13px; }
.mm figure.chart text { paint-order: stroke; stroke: var(--body-background-fill); stroke-width: 3px; }
.mm svg.tree { display: block; max-width: none; }
.mm .node rect { fill: var(--card); stroke: var(--soft); stroke-width: 1.2; }
.mm .node .word { font-weight: 600; }
.mm .node .number { font-size: 11px; fill: var(--soft); }
.mm .edge { fill: none; stroke: var(--soft); stroke-width: 1.4; }
.mm .node.accepted rect, .mm .swatch.accepted { fill: var(--accepted-soft); stroke: var(--accepted);
  background: var(--accepted-soft); border-color: var(--accepted); stroke-width: 2; }
.mm .edge.accepted { stroke: var(--accepted); stroke-width: 2.6; }
.mm .node.bonus rect, .mm .swatch.bonus { fill: var(--bonus-soft); stroke: var(--bonus);
  background: var(--bonus-soft); border-color: var(--bonus); stroke-width: 2; }
.mm .edge.bonus { stroke: var(--bonus); stroke-width: 2.6; }
.mm .node.root rect { fill: var(--ink); }
.mm .node.root .word, .mm .node.root .number { fill: var(--card); }
.mm .node.dropped rect, .mm .swatch.dropped { stroke: var(--dropped); stroke-dasharray: 4 3;
  border: 1px dashed var(--dropped); }
.mm .node.dropped .word, .mm .node.dropped .number { fill: var(--dropped); font-weight: 400; }
.mm .edge.dropped { stroke: var(--dropped); stroke-dasharray: 4 3; stroke-width: 1; }
.mm .swatch.verified { border-color: var(--soft); background: var(--card); }
.mm .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(270px, 1fr)); gap: 8px 16px; }
.mm figure.chart { margin: 0 0 8px; min-width: 0; max-width: 480px; }
.mm figcaption { font-weight: 600; font-size: 14px; color: var(--ink); }
.mm figure svg { width: 100%; height: auto; display: block; }
.mm .grid { stroke: var(--line); stroke-width: 1; }
.mm .reference { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 4 3; }
.mm .line { fill: none; stroke-width: 2; }
.mm .bar { fill: var(--s0); }
.mm .mark { fill: var(--s1); stroke: var(--card); stroke-width: 2; }
"""
    + "".join(
        f".mm .line.s{n} {{ stroke: var(--s{n}); }} .mm .dot.s{n} {{ fill: var(--s{n}); }}"
        f".mm .key.s{n} {{ background: var(--s{n}); }}\n"
        for n in range(6)
    )
    + """
@media (max-width: 720px) {
  .mm .panes { grid-template-columns: 1fr; }
  .mm .pane { min-height: 96px; }
  .mm .speedup { font-size: 44px; }
  .gradio-container .main.app { padding: 12px !important; }
  .gradio-container .tab-container button { padding: 0 9px !important; font-size: 14px; }
}
@media (prefers-reduced-motion: reduce) { .mm .status.busy::before { animation: none; } }
"""
)

PICK_ROUND = """
const pick = (event) => {
  const round = event.target.closest('[data-round]');
  if (round) trigger('select', {round: Number(round.dataset.round)});
};
element.addEventListener('click', pick);
element.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' || event.key === ' ') { pick(event); event.preventDefault(); }
});
"""
"""A press on a round in the speculative pane, by pointer or keyboard."""

SHOW_RACE = """
() => {
  if (window.innerWidth <= 720) document.getElementById('race').scrollIntoView({behavior: 'smooth'});
}
"""
"""On a phone the answers stand below what was pressed."""
