// What a machine can see of a page that somebody uses with a screen reader, with the keyboard, or with weak eyes.
() => {
  const wrong = [];
  const shown = (each) => each.offsetParent !== null;
  const name = (each) => each.getAttribute("aria-label") || each.labels?.[0]?.textContent || each.textContent.trim() || each.title;
  for (const each of document.querySelectorAll("button, a, input, select, textarea, canvas, [role=img], [role=table]"))
    if (shown(each) && !name(each)) wrong.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (!document.documentElement.lang) wrong.push("no language");
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id stands twice");
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((each) => { const c = each / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0.5) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const each of document.querySelectorAll("main *, header *")) {
    const text = [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!text || !shown(each) || each.disabled) continue;
    const [a, b] = [light(getComputedStyle(each).color), light(ground(each))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(1)}: ${each.outerHTML.slice(0, 80)}`);
  }
  return wrong;
}
