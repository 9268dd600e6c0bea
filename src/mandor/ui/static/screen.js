// Screen of a terminal: a grid of cells, changed by text and control sequences (ECMA-48, DEC VT100, xterm).

const HISTORY_MOST = 1000;
const SEQUENCE_MOST = 4096;
const SEQUENCE = /^\x1b(?:\[([?>!=]?)([0-9;:]*)[ -/]*([@-~])|\]([^\x07\x1b]*)(?:\x07|\x1b\\)|([()])(.)|[P^_][^\x1b]*\x1b\\|([#% ].|[@-Z=>78c\\^_`-~]))/;
const PLAIN = { fg: "", bg: "", bold: false, faint: false, under: false, inverse: false };
const LINES = Object.fromEntries([..."`afgjklmnopqrstuvwxyz{|}~"].map((key, index) => [key, [..."◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·"][index]]));

const blank = (columns, style = PLAIN) => Array.from({ length: columns }, () => ({ text: " ", style }));

export class Screen {
  // `answer` is called with what the program asked for: where the cursor is, what kind of terminal this is.
  constructor(rows, columns, answer = () => {}) {
    Object.assign(this, { rows, columns, answer, rest: "", history: [], settled: 0 });
    this.reset();
  }

  reset() {
    Object.assign(this, { x: 0, y: 0, style: PLAIN, top: 0, bottom: this.rows - 1, wrapping: false, drawing: false, other: null, kept: null });
    this.modes = { cursor: true, wrap: true, keys: false, paste: false };
    this.grid = Array.from({ length: this.rows }, () => blank(this.columns));
    this.dirty = new Set(this.grid.keys());
  }

  resize(rows, columns) {
    if (rows === this.rows && columns === this.columns) return;
    const fit = (line) => [...line.slice(0, columns), ...blank(Math.max(0, columns - line.length))];
    const tall = (grid) => Array.from({ length: rows }, (_, index) => fit(grid[index] ?? []));
    while (this.y >= rows) this.scrollUp(0, this.rows - 1), this.y -= 1;
    this.grid = tall(this.grid);
    if (this.other) this.other.grid = tall(this.other.grid);
    Object.assign(this, { rows, columns, top: 0, bottom: rows - 1, x: Math.min(this.x, columns - 1), wrapping: false });
    this.dirty = new Set(this.grid.keys());
  }

  write(piece) {
    const text = this.rest + piece;
    this.rest = "";
    for (let at = 0; at < text.length;) {
      const letter = text[at];
      if (letter === "\x1b") {
        const found = SEQUENCE.exec(text.slice(at, at + SEQUENCE_MOST));
        if (found) { this.sequence(found); at += found[0].length; continue; }
        if (text.length - at < SEQUENCE_MOST && /^\x1b(?:$|\[[?>!=]?[0-9;:]*[ -/]*$|[\]P^_][^\x07]*$|[()#% ]$)/.test(text.slice(at))) { this.rest = text.slice(at); return; }
        at += 1;
      } else if (letter < " " || letter === "\x7f") { this.control(letter); at += 1; }
      else { const point = String.fromCodePoint(text.codePointAt(at)); this.put(point); at += point.length; }
    }
  }

  put(letter) {
    if (this.wrapping) { this.x = 0; this.feed(); }
    if (/\p{Mark}/u.test(letter)) { // it stands over the letter before it
      const before = this.grid[this.y][Math.max(0, this.x - (this.wrapping ? 0 : 1))];
      before.text += letter;
      this.dirty.add(this.y);
      return;
    }
    this.grid[this.y][this.x] = { text: this.drawing ? LINES[letter] ?? letter : letter, style: this.style };
    this.dirty.add(this.y);
    this.wrapping = this.modes.wrap && this.x === this.columns - 1;
    this.x = Math.min(this.columns - 1, this.x + 1);
  }

  control(letter) {
    if (letter === "\r") this.move(0, this.y);
    else if (letter === "\n" || letter === "\v" || letter === "\f") this.feed();
    else if (letter === "\b") this.move(this.x - 1, this.y);
    else if (letter === "\t") this.move((this.x >> 3) * 8 + 8, this.y);
    else if (letter === "\x0e") this.drawing = true;
    else if (letter === "\x0f") this.drawing = false;
  }

  move(x, y) {
    this.dirty.add(this.y);
    this.x = Math.max(0, Math.min(this.columns - 1, x));
    this.y = Math.max(0, Math.min(this.rows - 1, y));
    this.wrapping = false;
    this.dirty.add(this.y);
  }

  feed() {
    if (this.y === this.bottom) { this.scrollUp(this.top, this.bottom); this.wrapping = false; }
    else this.move(this.x, this.y + 1);
  }

  scrollUp(top, bottom) {
    const [gone] = this.grid.splice(top, 1);
    this.grid.splice(bottom, 0, blank(this.columns));
    if (top === 0 && !this.other) {
      this.history.push(gone);
      this.settled += 1;
      if (this.history.length > HISTORY_MOST) this.history.shift();
    }
    for (let row = top; row <= bottom; row += 1) this.dirty.add(row);
  }

  scrollDown(top, bottom) {
    this.grid.splice(bottom, 1);
    this.grid.splice(top, 0, blank(this.columns));
    for (let row = top; row <= bottom; row += 1) this.dirty.add(row);
  }

  sequence([, mark, numbers, final, , charset, set, short]) {
    if (final) this.order(mark, numbers.split(/[;:]/).map((each) => (each === "" ? undefined : Number(each))), final);
    else if (charset === "(") this.drawing = set === "0";
    else if (short) this.escape(short);
  }

  escape(letter) {
    if (letter === "7") this.kept = { x: this.x, y: this.y, style: this.style };
    else if (letter === "8") this.recall();
    else if (letter === "D") this.feed();
    else if (letter === "E") { this.x = 0; this.feed(); }
    else if (letter === "M") { if (this.y === this.top) this.scrollDown(this.top, this.bottom); else this.move(this.x, this.y - 1); }
    else if (letter === "c") this.reset();
  }

  recall() {
    const { x, y, style } = this.kept ?? { x: 0, y: 0, style: PLAIN };
    this.style = style;
    this.move(x, y);
  }

  order(mark, given, final) {
    const [first, second] = given;
    const count = Math.min(10000, Math.max(1, first ?? 1));
    if (mark === "?" && (final === "h" || final === "l")) { given.forEach((each) => this.mode(each, final === "h")); return; }
    if (mark) return;
    const { x, y, top, bottom } = this;
    const times = (work) => { for (let number = 0; number < Math.min(count, this.rows); number += 1) work(); };
    const orders = {
      A: () => this.move(x, Math.max(y >= top ? top : 0, y - count)), B: () => this.move(x, Math.min(y <= bottom ? bottom : this.rows, y + count)),
      C: () => this.move(x + count, y), D: () => this.move(x - count, y),
      E: () => this.move(0, y + count), F: () => this.move(0, y - count), G: () => this.move(count - 1, y), "`": () => this.move(count - 1, y),
      H: () => this.move((second || 1) - 1, count - 1), f: () => this.move((second || 1) - 1, count - 1), d: () => this.move(x, count - 1),
      J: () => this.clearScreen(first ?? 0), K: () => this.clearLine(first ?? 0),
      L: () => { if (y >= top && y <= bottom) times(() => this.scrollDown(y, bottom)); }, M: () => { if (y >= top && y <= bottom) times(() => this.cut(y, bottom)); },
      P: () => this.shift(-count), "@": () => this.shift(count), X: () => this.clear(y, x, x + count),
      S: () => times(() => this.cut(top, bottom)), T: () => times(() => this.scrollDown(top, bottom)),
      r: () => { const end = Math.min(this.rows, second || this.rows); if (count < end) { this.top = count - 1; this.bottom = end - 1; this.move(0, 0); } },
      m: () => { this.style = styled(this.style, given); },
      s: () => this.escape("7"), u: () => this.recall(),
      n: () => this.answer(first === 6 ? `\x1b[${y + 1};${x + 1}R` : "\x1b[0n"), c: () => this.answer("\x1b[?1;2c"),
    };
    orders[final]?.();
  }

  // Within the screen: what goes is gone.
  cut(top, bottom) {
    this.grid.splice(top, 1);
    this.grid.splice(bottom, 0, blank(this.columns));
    for (let row = top; row <= bottom; row += 1) this.dirty.add(row);
  }

  mode(number, on) {
    if (number === 1) this.modes.keys = on;
    else if (number === 7) this.modes.wrap = on;
    else if (number === 25) { this.modes.cursor = on; this.dirty.add(this.y); }
    else if (number === 2004) this.modes.paste = on;
    else if (number === 47 || number === 1047 || number === 1049) this.switch(on);
  }

  // Programs that fill the screen have one of their own, and leave the other as it was.
  switch(on) {
    if (on === Boolean(this.other)) return;
    if (on) {
      this.other = { grid: this.grid, x: this.x, y: this.y, style: this.style };
      this.grid = Array.from({ length: this.rows }, () => blank(this.columns));
    } else {
      const { grid, x, y, style } = this.other;
      Object.assign(this, { grid, style, other: null, top: 0, bottom: this.rows - 1 });
      this.move(x, y);
    }
    this.dirty = new Set(this.grid.keys());
  }

  clear(row, from, to) {
    for (let column = Math.max(0, from); column < Math.min(this.columns, to); column += 1) this.grid[row][column] = { text: " ", style: { ...PLAIN, bg: this.style.bg } };
    this.wrapping = false;
    this.dirty.add(row);
  }

  clearLine(part) {
    this.clear(this.y, part === 0 ? this.x : 0, part === 1 ? this.x + 1 : this.columns);
  }

  clearScreen(part) {
    if (part === 3) { this.history = []; return; }
    const [first, last] = [part === 0 ? this.y + 1 : 0, part === 1 ? this.y : this.rows];
    if (part < 2) this.clearLine(part);
    for (let row = first; row < last; row += 1) this.clear(row, 0, this.columns);
  }

  shift(count) {
    const line = this.grid[this.y];
    const fresh = blank(Math.min(Math.abs(count), this.columns - this.x), { ...PLAIN, bg: this.style.bg });
    if (count > 0) { line.splice(this.x, 0, ...fresh); line.length = this.columns; }
    else { line.splice(this.x, fresh.length); line.push(...fresh); }
    this.dirty.add(this.y);
  }

  lines() { return this.grid.map((line) => line.map((each) => each.text).join("").trimEnd()); }
}

function styled(style, numbers) {
  let made = { ...style };
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at] ?? 0;
    if (number === 0) made = { ...PLAIN };
    else if (number === 1) made.bold = true;
    else if (number === 2) made.faint = true;
    else if (number === 4) made.under = true;
    else if (number === 7) made.inverse = true;
    else if (number === 22) made.bold = made.faint = false;
    else if (number === 24) made.under = false;
    else if (number === 27) made.inverse = false;
    else if (number === 38 || number === 48) {
      const [colour, used] = chosen(numbers.slice(at + 1));
      made[number === 38 ? "fg" : "bg"] = colour;
      at += used;
    } else if (number === 39) made.fg = "";
    else if (number === 49) made.bg = "";
    else if (number >= 30 && number < 38) made.fg = `${number - 30}`;
    else if (number >= 40 && number < 48) made.bg = `${number - 40}`;
    else if (number >= 90 && number < 98) made.fg = `${number - 82}`;
    else if (number >= 100 && number < 108) made.bg = `${number - 92}`;
  }
  return made;
}

// Parses a colour (256 colours or RGB); returns [colour, number of parameters].
function chosen([kind, a = 0, b = 0, c = 0]) {
  if (kind === 2) return [`rgb(${a & 255} ${b & 255} ${c & 255})`, 4];
  if (kind !== 5) return ["", 1];
  if (a < 16) return [`${a}`, 2];
  if (a >= 232) { const grey = 8 + 10 * (a - 232); return [`rgb(${grey} ${grey} ${grey})`, 2]; }
  const level = (part) => (part ? 55 + 40 * part : 0);
  return [`rgb(${level(Math.floor((a - 16) / 36))} ${level(Math.floor((a - 16) / 6) % 6)} ${level((a - 16) % 6)})`, 2];
}
