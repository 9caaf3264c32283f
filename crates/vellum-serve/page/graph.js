// The lines beside a snapshot. The server says where they are; here they are drawn.

import { draw } from "./dom.js";

const STEP = 14;
const COLOURS = 8;
/** Beyond it, lines are not told apart any more. */
const COLUMNS_MAX = 12;

const place = (column) => Math.min(column, COLUMNS_MAX) * STEP + STEP / 2 + 2;

/** How wide the lines of some rows are. */
export function graphWidth(rows) {
  const widest = rows.reduce((most, row) => row.edges.reduce(widestEdge, Math.max(most, row.column)), 0);
  return (Math.min(widest, COLUMNS_MAX) + 1) * STEP + 4;
}

function widestEdge(most, [above, below]) {
  return Math.max(most, above ?? 0, below ?? 0);
}

/**
 * Draws the lines beside one row.
 * @param {{ column: number, edges: [number | null, number | null, number][], isSafety: boolean, isHead: boolean }} row
 */
export function drawRow(row, width, height) {
  const middle = height / 2;
  const at = place(row.column);
  const lines = row.edges.map(([above, below, colour]) => {
    const from = above === null ? [at, middle] : [place(above), 0];
    const to = below === null ? [at, middle] : [place(below), height];
    return draw("path", { d: elbow(from, to), class: `line c${colour % COLOURS}` });
  });
  const own = row.edges.find(([above, below]) => above === row.column || below === row.column);
  const node = draw("circle", {
    cx: at,
    cy: middle,
    r: row.isHead ? 5 : 4,
    class: `node c${(own?.[2] ?? 0) % COLOURS}${row.isSafety ? " safety" : ""}${row.isHead ? " head" : ""}`,
  });
  return draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...lines, node);
}

/** A line that turns once, with a round corner. */
function elbow([x0, y0], [x1, y1]) {
  if (x0 === x1) return `M${x0} ${y0}V${y1}`;
  const radius = Math.min(7, Math.abs(x1 - x0), Math.abs(y1 - y0));
  const side = Math.sign(x1 - x0);
  // It turns beside the snapshot, not on its way.
  return y0 === 0
    ? `M${x0} ${y0}V${y1 - radius}Q${x0} ${y1} ${x0 + side * radius} ${y1}H${x1}`
    : `M${x0} ${y0}H${x1 - side * radius}Q${x1} ${y0} ${x1} ${y0 + radius}V${y1}`;
}
