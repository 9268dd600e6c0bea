// What the browser itself says of a page: when all of the cluster was on the screen, and what made somebody wait.
(() => {
  const seen = { first: 0, tasks: [], keys: [], gaps: [] };
  let wanted = "";
  let last = 0;
  window.panelBench = {
    reset() { Object.assign(seen, { tasks: [], keys: [], gaps: [] }); last = 0; },
    read: () => seen,
  };
  new PerformanceObserver((list) => { for (const each of list.getEntries()) seen.tasks.push(each.duration); })
    .observe({ type: "longtask", buffered: true });
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) {
      if (["keydown", "input", "pointerdown", "click"].includes(each.name)) seen.keys.push([each.processingStart - each.startTime, each.duration]);
    }
  }).observe({ type: "event", durationThreshold: 16, buffered: true });
  const frame = (now) => {
    if (last) seen.gaps.push(now - last);
    last = now;
    if (!seen.first) {
      wanted ||= window.panelWanted ?? "";
      const map = document.querySelector(`canvas[aria-label="${wanted}"]`);
      const numbers = [...document.querySelectorAll(".card b")].map((each) => each.textContent);
      // The next task begins when this frame has been painted.
      if (map && numbers.some((each) => each.includes("1000"))) setTimeout(() => { seen.first ||= performance.now(); });
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})();
