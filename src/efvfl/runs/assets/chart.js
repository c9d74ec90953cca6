// Charts of reports and of the dashboard: lines and bars as SVG, drawn at the width there is, with values under the pointer.
"use strict";
const Efvfl = (() => {
  const SVG = "http://www.w3.org/2000/svg", HEIGHT = 230, LETTER = 6.6; // pixels; a letter's mean width at 12 px
  const charts = new Map(); // what is drawn, by the element it is drawn in

  function make(name, attributes, parent, text) {
    const node = document.createElementNS(SVG, name);
    for (const key of Object.keys(attributes)) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function html(name, className, parent, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  // 12,345 or 1.2 M, and as many decimals as a step of this size needs.
  function short(value, step) {
    const size = Math.abs(value);
    for (const [factor, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]])
      if (size >= factor * (factor === 1e3 ? 10 : 1)) return trim(value / factor, (step || factor) / factor) + unit;
    return size && size < 1e-3 ? value.toExponential(0).replace("e-", "e−") : trim(value, step || size / 100);
  }

  function trim(value, step) {
    const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step || 1) - 1e-9)));
    return (Math.abs(value) < step / 1e6 ? 0 : value).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
  }

  function exact(value) { // as the pointer shows it
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Math.abs(value) >= 1e-3 ? Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 }) : value.toExponential(2);
  }

  function linear(low, high, room) {
    const raw = (high - low) / Math.max(1, room), power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 5, 10].find((each) => each * power >= raw * 0.999) || 10), found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found.map((value) => ({ value, text: short(value, step) }));
  }

  function logarithmic(low, high, room) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    for (const digits of [[1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let power = first; power <= last; power++)
        for (const digit of digits) if (digit * 10 ** power >= low * 0.999 && digit * 10 ** power <= high * 1.001) found.push(digit * 10 ** power);
      if (found.length >= 2 && found.length <= room) return found.map((value) => ({ value, text: short(value, decade(value)) }));
    }
    const every = Math.ceil((last - first) / Math.max(1, room)), found = [];
    for (let power = first; power <= last; power += every) found.push(10 ** power);
    const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    return inside.length >= 2 ? inside.map((value) => ({ value, text: short(value, decade(value)) })) : linear(low, high, room);
  }

  function decade(value) { return 10 ** Math.floor(Math.log10(value) + 1e-9); }

  function axis(values, wish, room) {
    const wished = wish || {}, known = values.filter((value) => Number.isFinite(value) && (wished.scale !== "log" || value > 0));
    let low = wished.min ?? Math.min(...known), high = wished.max ?? Math.max(...known);
    const log = wished.scale === "log" && low > 0;
    if (low === high) { const by = Math.abs(low) / 10 || 1; low = log ? low / 2 : wished.min ?? low - by; high = log ? high * 2 : high + by; }
    else if (!log) { const by = (high - low) * 0.05; low = wished.min ?? (low >= 0 && low < by * 4 ? 0 : low - by * (wished.tight ? 0 : 1)); high = wished.max ?? high + by * (wished.tight ? 0 : 1); }
    const map = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    return { low, high, map, ticks: log ? logarithmic(low, high, room) : linear(low, high, room) };
  }

  function lines(plot, spec, width) {
    const xs = spec.series.flatMap((each) => each.x), ys = spec.series.flatMap((each) => each.y);
    const y = axis(ys, spec.y, 5), left = Math.max(...y.ticks.map((tick) => tick.text.length)) * LETTER + 10;
    const right = width - 14, top = 22, bottom = HEIGHT - 38, x = axis(xs, { tight: true, ...spec.x }, Math.max(2, Math.floor((right - left) / 70)));
    const atX = (value) => left + x.map(value) * (right - left), atY = (value) => bottom - y.map(value) * (bottom - top);
    const svg = make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", tabindex: 0, "aria-label": described(spec) }, plot);
    for (const tick of y.ticks) {
      make("line", { class: "grid", x1: left, x2: right, y1: atY(tick.value), y2: atY(tick.value) }, svg);
      make("text", { x: left - 6, y: atY(tick.value) + 4, "text-anchor": "end" }, svg, tick.text);
    }
    make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }, svg);
    for (const tick of x.ticks) make("text", { x: atX(tick.value), y: bottom + 17, "text-anchor": "middle" }, svg, tick.text);
    make("text", { x: left - 6 < 60 ? 0 : left, y: 10 }, svg, spec.y.label || "");
    make("text", { x: right, y: HEIGHT - 4, "text-anchor": "end" }, svg, spec.x.label || "");
    const seen = (px, py) => Number.isFinite(px) && Number.isFinite(py) && atX(px) >= left - 1 && atX(px) <= right + 1 && Number.isFinite(atY(py));
    if (spec.diagonal) make("path", { class: "rule", d: `M${atX(x.low)} ${atY(Math.max(x.low, y.low))}L${atX(Math.min(x.high, y.high))} ${atY(Math.min(x.high, y.high))}` }, svg);
    if (spec.level !== undefined) make("path", { class: "rule", d: `M${left} ${atY(spec.level)}H${right}` }, svg);
    const drawn = spec.series.map((each) => {
      const group = make("g", { class: each.colour || "grey" }, svg), points = each.x.map((value, place) => [value, each.y[place]]).filter((point) => seen(...point));
      const path = points.map(([px, py], place) => `${place ? "L" : "M"}${atX(px).toFixed(1)} ${atY(py).toFixed(1)}`).join("");
      make("path", { class: each.dashed ? "curve dashed" : "curve", d: path }, group);
      if (points.length < 25) for (const [px, py] of points) make("circle", { class: "dot", cx: atX(px), cy: atY(py), r: 2.5 }, group);
      return { name: each.name, points, group };
    });
    hover(plot, svg, drawn, { atX, atY, left, right, top, bottom, width, spec });
  }

  function hover(plot, svg, drawn, at) {
    const every = [...new Set(drawn.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
    if (!every.length) return;
    const pointer = make("g", { visibility: "hidden" }, svg), line = make("line", { class: "pointer", y1: at.top, y2: at.bottom }, pointer);
    const marks = drawn.map((each) => make("circle", { class: "dot", r: 4 }, make("g", { class: each.group.getAttribute("class") }, pointer)));
    const tip = html("div", "tip", plot);
    tip.hidden = true;
    let place = -1;
    function show(index) {
      place = Math.max(0, Math.min(every.length - 1, index));
      const value = every[place], px = at.atX(value);
      for (const key of ["x1", "x2"]) line.setAttribute(key, px);
      pointer.setAttribute("visibility", "visible");
      tip.replaceChildren(html("div", "", null, `${at.spec.x.name || at.spec.x.label} ${exact(value)}`));
      drawn.forEach((each, number) => {
        const near = nearest(each.points, value), close = near && Math.abs(at.atX(near[0]) - px) < 12;
        marks[number].setAttribute("visibility", close ? "inherit" : "hidden");
        if (!close) return;
        marks[number].setAttribute("cx", at.atX(near[0]));
        marks[number].setAttribute("cy", at.atY(near[1]));
        const row = html("div", "", tip);
        html("span", "", row, each.name);
        html("span", "", row, exact(near[1]));
      });
      tip.hidden = false;
      const box = tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(at.width - box, px < at.width / 2 ? px + 12 : px - box - 12))}px`;
    }
    function hide() { place = -1; tip.hidden = true; pointer.setAttribute("visibility", "hidden"); }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * at.width / box.width;
      let best = 0;
      every.forEach((value, index) => { if (Math.abs(at.atX(value) - px) < Math.abs(at.atX(every[best]) - px)) best = index; });
      show(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) { show(place < 0 ? (by > 0 ? 0 : every.length - 1) : place + by); event.preventDefault(); }
    });
  }

  function nearest(points, value) {
    let best = null;
    for (const point of points) if (!best || Math.abs(point[0] - value) < Math.abs(best[0] - value)) best = point;
    return best;
  }

  // Bars that lie: a name above, the value at the end. `spec.rows` has [name, [value of each series]].
  function bars(plot, spec, width) {
    const texts = (value) => spec.texts === "share" ? `${trim(100 * value, value < 0.1 ? 0.1 : 1)} %` : bytes(value);
    const most = Math.max(...spec.rows.flatMap(([, values]) => values), 1e-12), thick = 14, per = spec.series.length * (thick + 4) + 24;
    const end = Math.max(...spec.rows.flatMap(([, values]) => values.map((value) => texts(value).length))) * LETTER + 10;
    const height = spec.rows.length * per, svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": described(spec) }, plot);
    spec.rows.forEach(([name, values], row) => {
      make("text", { x: 0, y: row * per + 14 }, svg, name);
      values.forEach((value, number) => {
        const top = row * per + 20 + number * (thick + 4), long = Math.max(1, (width - end) * value / most);
        make("rect", { class: "bar", x: 0, y: top, width: long, height: thick, rx: 2 }, make("g", { class: spec.series[number].colour }, svg));
        make("text", { class: "value", x: long + 6, y: top + 11.5 }, svg, texts(value));
      });
    });
  }

  // A dot with its interval for each of `spec.ranges`, which has [name, value, low, high]; `spec.zero` shows where 0 is.
  function ranges(plot, spec, width) {
    const known = spec.ranges.flatMap(([, ...numbers]) => numbers), names = Math.max(...spec.ranges.map(([name]) => name.length)) * LETTER + 14;
    const beside = names < 0.45 * width, left = beside ? names : 6, per = beside ? 24 : 34, end = Math.max(...spec.ranges.map(([, value]) => exact(value).length)) * LETTER + 12;
    const x = axis(spec.zero ? [0, ...known] : known, {}, Math.max(2, Math.floor((width - left - end) / 70))), height = spec.ranges.length * per + 34;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": described(spec) }, plot), at = (value) => left + x.map(value) * (width - end - left - 6);
    for (const tick of x.ticks) {
      make("line", { class: "grid", x1: at(tick.value), x2: at(tick.value), y1: 0, y2: height - 30 }, svg);
      make("text", { x: Math.max(at(tick.value), 14), y: height - 16, "text-anchor": "middle" }, svg, tick.text);
    }
    make("text", { x: at(x.high), y: height - 2, "text-anchor": "end" }, svg, spec.x.label || "");
    if (spec.zero) make("path", { class: "rule", d: `M${at(0)} 0V${height - 30}` }, svg);
    spec.ranges.forEach(([name, value, low, high], row) => {
      const y = row * per + (beside ? 12 : 24), group = make("g", { class: spec.series[0].colour }, svg);
      make("text", { x: 0, y: beside ? y + 4 : row * per + 13 }, svg, name); // long names are above their line
      if (![value, low, high].every(Number.isFinite)) return;
      make("path", { class: "curve", d: `M${at(low)} ${y}H${at(high)}` }, group);
      make("circle", { class: "dot", cx: at(value), cy: y, r: 4 }, group);
      make("text", { class: "value", x: width - end + 8, y: y + 4 }, svg, exact(value));
    });
  }

  function bytes(value) {
    for (const [factor, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
      if (value >= factor) return `${(value / factor).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${unit}`;
    return `${Math.round(value).toLocaleString("en")} B`;
  }

  function described(spec) {
    const last = (spec.rows || spec.ranges ? [] : spec.series).filter((each) => each.y.length).map((each) => `${each.name} ends at ${exact(each.y[each.y.length - 1])}`);
    return [spec.title, ...last].join(", ");
  }

  function render(plot) {
    const spec = charts.get(plot), width = Math.round(plot.clientWidth);
    if (!spec || !width) return;
    plot.replaceChildren();
    plot.classList.toggle("bars", Boolean(spec.rows || spec.ranges));
    const has = spec.rows || spec.ranges ? (spec.rows || spec.ranges).length : spec.series.some((each) => each.x.some((value, place) => Number.isFinite(value) && Number.isFinite(each.y[place])));
    if (!has) html("div", "empty", plot, spec.waiting || "nothing yet");
    else (spec.rows ? bars : spec.ranges ? ranges : lines)(plot, spec, width);
  }

  const watch = new ResizeObserver((entries) => entries.forEach((entry) => {
    const width = Math.round(entry.target.clientWidth);
    if (entry.target.dataset.width !== String(width)) { entry.target.dataset.width = width; render(entry.target); }
  }));

  // Draw a chart in a figure, or draw it anew with other values; one that has not changed is left alone.
  function draw(figure, spec) {
    const key = JSON.stringify(spec);
    if (figure.efvflKey === key) return;
    figure.efvflKey = key;
    let plot = figure.querySelector(".plot");
    if (!plot) {
      const caption = html("figcaption", "", figure, spec.title);
      if (spec.note) html("span", "", caption, spec.note);
      html("div", "legend", figure);
      plot = html("div", "plot", figure);
      watch.observe(plot);
    }
    const legend = figure.querySelector(".legend");
    legend.replaceChildren();
    if (spec.series.length > 1) for (const each of spec.series) {
      const entry = html("span", each.colour || "grey", legend);
      html("i", each.dashed ? "dashed" : "", entry);
      entry.append(each.name);
    }
    charts.set(plot, spec);
    render(plot);
  }

  function drawAll() {
    const data = document.getElementById("charts");
    if (data) JSON.parse(data.textContent).forEach((spec, number) => draw(document.getElementById(`chart-${number}`), spec));
  }
  return { draw, drawAll, bytes, exact, html };
})();
Efvfl.drawAll();
