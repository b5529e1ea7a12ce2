// Sends numbers and prints those that are accepted, or receives from the stream by a durable link and prints what comes,
// with its delivery-count, accepting each. Ends with its connection: the test kills the node.
"use strict";
const path = require("path");
const rhea = require(path.join(process.argv[2], "node_modules", "rhea"));
const [port, mode] = [Number(process.argv[3]), process.argv[4]];
const container = rhea.create_container({ id: mode });
const connection = container.connect({ host: "127.0.0.1", port, username: "anonymous", reconnect: false });
const say = (...words) => process.stdout.write(words.join(" ") + "\n");
if (mode === "send") {
  let next = 0;
  const bodies = new Map();
  const sender = connection.open_sender("plant/1/x");
  const fill = () => {
    while (sender.sendable() && bodies.size < 50) {
      const body = String(next++);
      bodies.set(sender.send({ body }).id, body);
    }
  };
  sender.on("sendable", fill);
  sender.on("accepted", (context) => { say(bodies.get(context.delivery.id)); bodies.delete(context.delivery.id); fill(); });
} else {
  const source = { address: "stream/telemetry", durable: 2, expiry_policy: "never", filter: { "weft:offset-spec": "first" } };
  connection.open_receiver({ name: "my-link", source, credit_window: 20 })
    .on("message", (context) => say(context.message.body, context.message.delivery_count || 0));
}
connection.on("disconnected", () => process.exit(0));
connection.on("error", () => process.exit(0));
