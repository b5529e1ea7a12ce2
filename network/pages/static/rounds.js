// Work that a page repeats, and events that it reads.

/** Repeat `work` for as long as the signal lasts and the page is seen: on `poke`, else after `restMs`. A round that took
 * long is followed by a longer pause, so that an open page costs its server at most a share of its time; by at most
 * `mostMs`, for work that a server does while it is asked. */
export class Rounds {
  static SHARE = 0.01;

  constructor(work, { leastMs = 2000, restMs = 30000, mostMs = Infinity, signal }) {
    Object.assign(this, { work, leastMs, restMs, mostMs, signal, isWanted: false, isBusy: false, timer: null, earliest: 0 });
    signal.addEventListener("abort", () => clearTimeout(this.timer));
    document.addEventListener("visibilitychange", () => document.hidden || this.poke(), { signal });
    this.run();
  }

  poke() {
    if (this.isBusy) {
      this.isWanted = true;
      return;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), Math.max(0, this.earliest - performance.now()));
  }

  async run() {
    if (this.signal.aborted || document.hidden) return;
    this.isBusy = true;
    this.isWanted = false;
    const began = performance.now();
    try {
      await this.work();
    } finally {
      this.isBusy = false;
      const took = performance.now() - began;
      const pause = Math.min(this.mostMs, Math.max(this.leastMs, took / Rounds.SHARE));
      this.earliest = performance.now() + pause;
      clearTimeout(this.timer);
      if (!this.signal.aborted) {
        this.timer = setTimeout(() => this.run(), this.isWanted ? pause : Math.max(pause, this.restMs));
      }
    }
  }
}

/** Yield the objects of server-sent events in the body of an answer. */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const each of events) yield each.startsWith("data: ") ? JSON.parse(each.slice(6)) : null;
  }
}
