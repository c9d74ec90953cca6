// The live page: draws what the server says of a run's files, and says so when it says nothing any more.
"use strict";
(() => {
  const at = (id) => document.getElementById(id), { draw, bytes, html } = Efvfl;
  const chosen = new URLSearchParams(location.search).get("run") || "";
  const SAY = {
    killed: "The process was killed, or its machine went down. Start the same command again: it goes on from what was saved.",
    silent: "No sign of life for a while: the process hangs, or runs on a machine that is not this one.",
    failed: "It ended with an error",
    stopped: "It was stopped, and has saved everything. Start the same command again: it goes on from there.",
    unknown: "No process has left a status in this folder.",
  };
  const LIMITS = { bytes: "training bytes sent", steps: "steps", rows: "rows given by id" };
  let last = null, heard = 0;

  function long(seconds) {
    if (!Number.isFinite(seconds)) return "?";
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
  }
  const clock = (time) => new Date(1000 * time).toLocaleString("en-GB", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const number = (value) => Number(value).toLocaleString("en");

  function table(box, headings, rows) {
    const whole = html("table", ""), head = html("tr", "", html("thead", "", whole)), body = html("tbody", "", whole);
    for (const heading of headings) html("th", "", head, heading);
    for (const cells of rows) {
      const row = html("tr", "", body);
      for (const cell of cells) html("td", cell && cell.bad ? "bad" : "", row, cell && cell.bad ? cell.bad : cell);
    }
    box.replaceChildren(whole);
  }

  function tiles(values) {
    at("tiles").replaceChildren(...values.filter(Boolean).map(([value, what]) => {
      const tile = html("div", "tile");
      html("b", "", tile, value);
      html("span", "", tile, what);
      return tile;
    }));
  }

  function charts(box, specs) {
    const kept = new Map([...box.children].map((figure) => [figure.dataset.name, figure]));
    for (const [name, spec] of specs) {
      let figure = kept.get(name);
      if (!figure) { figure = html("figure", "chart", box); figure.dataset.name = name; }
      kept.delete(name);
      draw(figure, spec);
    }
    for (const figure of kept.values()) figure.remove();
  }

  function score(run) {
    const found = run.last && (Object.keys(run.last.validation).length ? ["validation", run.last.validation] : ["test", run.last.test]);
    const name = found && (Object.keys(found[1]).find((each) => each !== "loss") || Object.keys(found[1])[0]);
    return name && found[1][name] !== null ? [found[1][name].toFixed(3), `${found[0]} ${name}, after epoch ${number(run.last.epoch)}`] : null;
  }

  function sum(table, way) { return Object.values(table).reduce((total, pair) => total + pair[way], 0); }

  function show(state) {
    const run = state.run;
    runs(state);
    if (!run) { at("stage").textContent = "waiting"; at("sign").textContent = "Nothing has been written to this folder yet."; return; }
    const status = run.status, running = run.stage === "running", alone = status.connected === false || Object.keys(status.missing || {}).length > 0, steps = status.steps;
    const known = [status.step, run.last && run.last.step].filter(Number.isFinite), step = known.length ? Math.max(...known) : null; // a status is up to a second old
    document.title = `${run.name}: ${run.stage}`;
    at("name").textContent = (run.command === "serve" && run.name === "server" ? (run.holder ? `${run.holder}, label holder` : "Label holder") : run.name) + (run.command ? ` (efvfl ${run.command})` : "");
    at("stage").textContent = run.stage;
    at("stage").className = `stage ${run.stage}`;
    const say = SAY[run.stage] && SAY[run.stage].replace("the same command again", run.command === "run" ? "efvfl run with --resume" : "the same command again");
    at("say").hidden = !say;
    at("say").textContent = say ? (run.stage === "failed" && status.why ? `${say}: ${status.why}` : say) : "";
    at("progress").hidden = !steps;
    if (steps) { at("progress").max = steps; at("progress").value = run.stage === "finished" ? steps : Math.min(steps, step || 0); }
    const sent = run.sent || { sent: {}, uncompressed: {} }, up = sum(sent.sent, 0), down = sum(sent.sent, 1);
    const named = Object.keys(sent.sent).filter((name) => name in sent.uncompressed);
    const full = named.reduce((all, name) => all + sent.uncompressed[name][0] + sent.uncompressed[name][1], 0), fewer = full / (up + down);
    const unit = run.runs ? "runs done" : "steps";
    tiles([
      step !== null && step !== undefined ? [number(step), steps && steps !== step ? `of ${run.stage === "finished" ? "at most " : ""}${number(steps)} ${unit}` : unit] : null,
      running && !alone && status.rate > 0 && steps > step ? [long((steps - step) / status.rate), `left at most, at ${Number(status.rate.toPrecision(2)).toLocaleString("en")} steps a second`] : null,
      status.loss !== undefined && status.loss !== null ? [status.loss.toFixed(4), "loss of the last step"] : null,
      score(run),
      up + down ? [bytes(up + down), `sent for training: ${bytes(up)} up, ${bytes(down)} down`] : null,
      fewer > 0 && Number.isFinite(fewer) ? [`${fewer < 10 ? fewer.toFixed(1) : Math.round(fewer)} × fewer`, "bytes than without compression"] : null,
      running && status.connected !== undefined ? [status.connected ? "connected" : "no link", "to the server"] : null,
    ]);
    const all = Object.entries(run.charts);
    charts(at("curves"), all.filter(([name]) => name !== "sent" && name !== "time"));
    charts(at("bars"), all.filter(([name]) => name === "sent" || name === "time"));
    here(run, running);
    limits(status);
    left(run);
    const listed = run.runs || [];
    at("listed").hidden = !listed.length;
    if (listed.length) table(at("listed").querySelector(".wide"), ["run", "", "step", "scores"], listed.map((each) => [each.name, each.stage, each.step === null ? "" : number(each.step), Object.entries(each.scores).map(([name, value]) => `${name} ${value === null ? "?" : value.toFixed(3)}`).join(", ")]));
    warnings(status.warnings || []);
    signs();
  }

  function runs(state) {
    at("runs").hidden = state.runs.length < 2;
    at("runs").replaceChildren(...state.runs.map((each) => {
      const link = html("a", "");
      link.href = `/?run=${encodeURIComponent(each.id)}`;
      if (each.id === state.chosen) link.setAttribute("aria-current", "page");
      html("i", each.stage, link);
      link.append(each.id);
      return link;
    }));
  }

  function here(run, running) {
    const missing = run.status.missing || {}, known = new Set([...(run.status.here || []), ...Object.keys(missing), ...(run.command === "join" ? [] : Object.keys(run.peers || {}).filter(Boolean))]);
    at("here").hidden = !known.size || run.command === "run";
    if (at("here").hidden) return;
    at("here").querySelector("h2").textContent = running ? "Who is here" : "Who took part";
    const away = {};
    for (const [, name] of run.absent) away[name] = (away[name] || 0) + 1;
    const headings = running ? ["party", "now", "connected since", "last heard", "absences"] : ["party", "last heard", "absences"];
    table(at("here").querySelector(".wide"), headings, [...known].sort().map((name) => {
      const seen = run.peers[name], gone = name in missing;
      const now = gone ? { bad: `missing for ${long(missing[name])}` } : seen ? "here" : "here, with the server";
      const heard = [seen ? clock(seen.heard) : "", away[name] ? number(away[name]) : "none"];
      return running ? [name, now, seen && !gone ? clock(seen.since) : "", ...heard] : [name, ...heard];
    }));
  }

  function limits(status) {
    const rows = Object.entries(status.limits || {}).map(([name, most]) => [LIMITS[name] || name, number(status.used[name]), most ? number(most) : "no limit", most ? `${(100 * status.used[name] / most).toFixed(1)} %` : ""]);
    at("limits").hidden = !rows.length;
    if (rows.length) table(at("limits").querySelector(".wide"), ["", "so far", "allowed", "used"], rows);
  }

  function left(run) {
    const lines = run.left || [], [out, come] = at("left").querySelectorAll(".wide");
    at("left").hidden = !lines.length;
    if (!lines.length) return;
    at("left").querySelector("p").textContent = "Every frame that this participant has sent, by kind, from its own audit log." + (run.read < 1 ? ` ${Math.round(100 * run.read)} % of it is counted.` : "");
    const of = (direction) => lines.filter((line) => line.direction === direction).map((line) => [line.kind, number(line.frames), bytes(line.bytes), line.what]);
    table(out, ["kind", "frames", "bytes", "what it contains"], of("out"));
    table(come, ["kind", "frames", "bytes", "what it contains"], of("in"));
  }

  function warnings(found) {
    const box = at("warnings").querySelector("div");
    if (!found.length) { box.replaceChildren(html("p", "soft", null, "None.")); return; }
    const list = html("ul", "");
    for (const each of [...found].reverse()) {
      const item = html("li", "", list);
      html("time", "", item, clock(each.time));
      item.append(each.text);
    }
    box.replaceChildren(list);
  }

  function signs() { // what depends on the time alone
    if (!last || !last.run || !last.run.seen) return;
    const ago = Math.max(0, Date.now() / 1000 - last.run.seen), began = last.run.began;
    at("sign").textContent = last.run.stage === "running" ? `since ${clock(began)}, last sign of life ${ago < 3 ? "just now" : `${long(ago)} ago`}` : `${last.run.stage === "finished" ? "ended" : "last sign of life"} ${clock(last.run.seen)}`;
  }

  function lost() {
    at("stage").textContent = "page out of date";
    at("stage").className = "stage lost";
    at("sign").textContent = "The dashboard itself does not answer any more.";
  }

  function listen() {
    const source = new EventSource(`/events?run=${encodeURIComponent(chosen)}`);
    source.onmessage = (event) => { heard = Date.now(); last = JSON.parse(event.data); show(last); };
    source.onerror = () => { if (!heard || Date.now() - heard > 5000) lost(); if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000); };
  }
  listen();
  setInterval(signs, 1000);
})();
