// Chart: recent values as a line, with their limit; the newest value is at the right.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 48;

function draw(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// `room`: number of values over the width of the chart. `limit`: 0: none. `text`: formats a value.
export function chart(label, values, { room, limit = 0, text }) {
  const last = values.at(-1) ?? 0;
  const peak = Math.max(...values, 0);
  const top = Math.max(peak, limit, 1) * 1.1;
  const x = (place) => WIDTH - (WIDTH * (values.length - 1 - place)) / (room - 1);
  const y = (value) => HEIGHT - (HEIGHT * value) / top;
  const said = limit ? `${label} ${text(last)} / ${text(limit)}` : `${label} ${text(last)}, ≤ ${text(peak)}`;
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": said, preserveAspectRatio: "none" });
  const points = values.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const first = x(0).toFixed(1);
  picture.append(
    draw("polygon", { points: `${first},${HEIGHT} ${points} ${WIDTH},${HEIGHT}`, class: "area" }),
    draw("polyline", { points: values.length > 1 ? points : `${WIDTH - 4},${y(last)} ${WIDTH},${y(last)}`, class: "curve" }));
  if (limit) picture.append(draw("line", { x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit), class: "limit" }));
  return picture;
}
