// amqplib at a node: `node amqplib_peer.js FOLDER MODE PORT QUEUE`. What it sees goes to standard output, line by line.
const amqplib = require(process.argv[2] + "/node_modules/amqplib");
const [mode, port, queue] = process.argv.slice(3);
const url = `amqp://guest:guest@127.0.0.1:${port}/`;
const IN_FLIGHT = 16;

const say = (line) => process.stdout.write(line + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Publish 0, 1, ... until the connection breaks; say which of them are confirmed.
async function publish() {
  const connection = await amqplib.connect(url);
  connection.on("error", () => {});
  connection.on("close", () => process.exit(0));
  const channel = await connection.createConfirmChannel();
  channel.on("error", () => {});
  await channel.assertQueue(queue, { durable: true });
  let next = 0;
  const more = () => {
    const n = next++;
    channel.publish("", queue, Buffer.from(String(n)), { persistent: true, mandatory: true }, (error) => {
      if (error === null || error === undefined) {
        say(`confirmed ${n}`);
        more();
      }
    });
  };
  for (let each = 0; each < IN_FLIGHT; each++) more();
}

// Consume, connecting again whenever the connection breaks, until a message says `end`. An acknowledgement is on disk
// one write after it was sent at the latest: when a second message that was published after it is confirmed.
async function consume() {
  for (;;) {
    try {
      const connection = await amqplib.connect(url);
      const closed = new Promise((done) => connection.on("close", done));
      connection.on("error", () => {});
      const channel = await connection.createConfirmChannel();
      channel.on("error", () => {});
      await channel.prefetch(8);
      let ended = () => {};
      const end = new Promise((done) => (ended = done));
      let before = Promise.resolve();
      await channel.consume(queue, (message) => {
        before = before.then(() => take(channel, message, ended)).catch(() => {});
      });
      if ((await Promise.race([end, closed])) === "end") {
        await connection.close();
        return;
      }
    } catch {
      // The node is not there.
    }
    await sleep(50);
  }
}

async function take(channel, message, ended) {
  const body = message.content.toString();
  say(`taken ${body} ${Number(message.fields.redelivered)}`);
  channel.ack(message);
  for (let each = 0; each < 2; each++) {
    channel.publish("amq.fanout", "", Buffer.from(""));
    await channel.waitForConfirms();
  }
  say(`done ${body}`);
  if (body === "end") ended("end");
}

// Use what the library has.
async function everything() {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  const found = {};

  const { queue: own } = await channel.assertQueue("", { exclusive: true });
  found.named = own.startsWith("amq.gen-");
  await channel.assertExchange("js-first", "topic", { autoDelete: true });
  await channel.assertExchange("js-second", "headers", { autoDelete: true });
  await channel.bindExchange("js-second", "js-first", "line.#");
  await channel.bindQueue(own, "js-second", "", { "x-match": "any", kind: "hot", level: 3 });
  const headers = {
    kind: "hot", whole: 7, large: 2 ** 40, negative: -5, half: 1.5, yes: true, text: "\u00fc", nothing: null,
    list: [1, "two", { three: 3 }], table: { inner: { deep: "x" } }, bytes: Buffer.from([0, 255]),
    when: { "!": "timestamp", value: 1700000000 }, price: { "!": "decimal", value: { places: 2, digits: 1999 } },
  };
  channel.publish("js-first", "line.3.temperature", Buffer.from("typed"), {
    headers, contentType: "text/plain", contentEncoding: "utf-8", correlationId: "c", replyTo: "r", messageId: "m",
    timestamp: 1700000000, type: "t", appId: "a", priority: 4, expiration: "60000", deliveryMode: 2,
  });
  await channel.waitForConfirms();
  const got = await channel.get(own, { noAck: true });
  found.headers = got.properties.headers;
  found.headers.bytes = [...got.properties.headers.bytes];
  delete got.properties.headers;
  found.properties = JSON.parse(JSON.stringify(got.properties));
  found.empty = await channel.get(own);

  const returned = new Promise((done) => channel.once("return", done));
  channel.publish("", "no-such-queue", Buffer.from("back"), { mandatory: true });
  found.returned = (await returned).fields.replyCode;
  await channel.waitForConfirms();

  // Three messages, two at a time; the first is given back once and the second rejected.
  const work = (await channel.assertQueue("js-work", { durable: true, deadLetterExchange: "", deadLetterRoutingKey: own })).queue;
  for (const text of ["a", "b", "c"]) channel.sendToQueue(work, Buffer.from(text));
  await channel.waitForConfirms();
  await channel.prefetch(2);
  const taken = [];
  await new Promise((done) => {
    channel.consume(work, (message) => {
      if (message === null) return; // the queue was deleted
      const text = message.content.toString();
      taken.push([text, message.fields.redelivered]);
      if (text === "a" && !message.fields.redelivered) channel.nack(message);
      else if (text === "b") channel.reject(message, false);
      else channel.ack(message);
      if (taken.length === 4) done();
    });
  });
  found.taken = taken.sort();
  let dead = false;
  for (let tries = 0; !dead && tries < 500; tries++) {
    dead = await channel.get(own, { noAck: true });
    if (!dead) await sleep(10);
  }
  found.dead = [dead.content.toString(), dead.properties.headers["x-death"][0].reason];

  // A request whose answer comes directly, and the news that a queue is gone.
  const answer = new Promise((done) => channel.consume("amq.rabbitmq.reply-to", done, { noAck: true }));
  channel.sendToQueue(own, Buffer.from("question"), { replyTo: "amq.rabbitmq.reply-to" });
  await channel.waitForConfirms();
  const question = await channel.get(own, { noAck: true });
  channel.sendToQueue(question.properties.replyTo, Buffer.from("answer"));
  found.answer = (await answer).content.toString();
  await channel.assertQueue("js-gone");
  let watched;
  const gone = new Promise((done) => (watched = channel.consume("js-gone", done)));
  await watched;
  await channel.deleteQueue("js-gone");
  found.gone = await gone; // null says that the node has cancelled the consumer
  found.purged = (await channel.purgeQueue(work)).messageCount;
  await channel.deleteQueue(work);
  say(JSON.stringify(found));
  await connection.close();
}

// Close a connection in the turn in which messages were published: the library writes its close before what its channels
// have queued.
async function close() {
  const closes = async (count) => {
    const connection = await amqplib.connect(url);
    connection.on("error", (error) => say(`error ${error.message}`));
    const channel = await connection.createChannel();
    for (let n = 0; n < count; n++) channel.publish("amq.topic", "plant.1.a", Buffer.alloc(100));
    await connection.close();
    say(`closed ${count}`);
  };
  for (const count of [0, 100, 500, 1000, 2046, 5000]) await closes(count);
}

({ publish, consume, everything, close })[mode]().catch((error) => {
  console.error(error);
  process.exit(1);
});
