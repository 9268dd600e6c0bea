// Sorted list in natural order (n2 before n10), updated by insertion and removal without sorting again.

const sortable = (key) => key.replace(/\d+/g, (digits) => digits.padStart(12, "0"));

export class Order {
  constructor() { this.reset([]); }

  reset(keys) {
    const found = keys.map((key) => ({ key, word: sortable(key) }));
    found.sort((a, b) => (a.word < b.word ? -1 : a.word > b.word ? 1 : 0));
    this.keys = found.map((each) => each.key);
    this.words = found.map((each) => each.word);
  }

  add(key) {
    const word = sortable(key);
    const at = this.position(word);
    this.words.splice(at, 0, word);
    this.keys.splice(at, 0, key);
  }

  remove(key) {
    let at = this.position(sortable(key));
    while (at < this.keys.length && this.keys[at] !== key) at += 1; // 7 and 07 have the same word
    this.words.splice(at, 1);
    this.keys.splice(at, 1);
  }

  // The first place whose word is not before this one.
  position(word) {
    let [low, high] = [0, this.words.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.words[middle] < word) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
