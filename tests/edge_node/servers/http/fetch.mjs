// What a page does in a browser: posts with fetch, and reads server-sent events with it.
const [url] = process.argv.slice(2);
const path = `${url}/v1/streams/telemetry/plant/a`;
const post = (body, headers = {}) => fetch(path, {method: "POST", body, headers});

const found = {};
found.text = await (await post("21.5", {"Content-Type": "text/plain"})).json();
found.array = await (await post(JSON.stringify([1, {v: 2}]), {"Content-Type": "application/json"})).json();
found.bytes = await (await post(new Uint8Array([0, 255]))).json();
const body = new ReadableStream({
  start(controller) {
    for (const piece of ['{"n":1}\n', '{"n":2}\n']) controller.enqueue(new TextEncoder().encode(piece));
    controller.close();
  },
});
const streamed = await fetch(path, {
  method: "POST", body, duplex: "half", headers: {"Content-Type": "application/x-ndjson"},
});
found.streamed = await streamed.json();
found.keyed = [];
for (let at = 0; at < 2; at++) {
  const answer = await post("once", {"Idempotency-Key": "k"});
  found.keyed.push([(await answer.json()).first_seq, answer.headers.get("idempotency-replayed")]);
}
found.refused = (await fetch(path, {method: "PUT", body: "x"})).status;

const events = await fetch(`${url}/v1/streams/telemetry/events?from=earliest`, {headers: {"Last-Event-ID": "2"}});
let text = "";
for await (const piece of events.body.pipeThrough(new TextDecoderStream())) {
  text += piece;
  if (text.includes("once")) break;
}
found.ids = [...text.matchAll(/^id: (\d+)$/gm)].map((each) => Number(each[1]));
console.log(JSON.stringify(found));
process.exit(0);
