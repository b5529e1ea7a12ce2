// One message at a time: rhea answers several in one disposition, whatever their outcomes are.
// Sends messages to a topic and receives them from the stream, then releases, modifies and accepts one of them.
"use strict";
const path = require("path");
const rhea = require(path.join(process.argv[2], "node_modules", "rhea"));
const connection = rhea.connect({ host: "127.0.0.1", port: Number(process.argv[3]), username: "anonymous", reconnect: false });
const count = 10;
let accepted = 0, received = [], attempts = [];
const finish = () => {
  if (accepted === count && received.length === count && attempts.length === 3) {
    console.log(JSON.stringify({ accepted, received, attempts }));
    connection.close();
  }
};
const sender = connection.open_sender("plant/1/x");
sender.on("accepted", () => { accepted++; finish(); });
connection.open_receiver({ source: "stream/telemetry", autoaccept: false, credit_window: 1 }).on("message", (context) => {
  const count_ = context.message.delivery_count || 0;
  if (context.message.body === "0" && attempts.length < 3) {
    attempts.push(count_);
    if (attempts.length === 1) { context.delivery.release(); return; }
    if (attempts.length === 2) { context.delivery.modified({ delivery_failed: true }); return; }
  }
  context.delivery.accept();
  received.push([context.message.body, context.message.application_properties.number, context.message.to]);
  finish();
}).on("receiver_open", () => {
  for (let i = 0; i < count; i++) sender.send({ body: String(i), application_properties: { number: i } });
});
connection.on("disconnected", (context) => process.exit(context.error ? 1 : 0));
