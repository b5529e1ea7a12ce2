// A device of modbus-serial: register 0 counts the answers, others and the coils keep what is written.
//
// node modbus_server.cjs PORT LOG FOLDER OPTIONS: FOLDER has node_modules. Register 0 begins at the number in LOG.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [port, log, folder] = process.argv.slice(2);
const { ServerTCP } = require(path.join(folder, "node_modules", "modbus-serial"));

const registers = new Map();
const coils = new Map();
let count = fs.existsSync(log) ? Number(fs.readFileSync(log, "utf8")) : 0;

function next() {
  count += 1;
  fs.writeFileSync(log, String(count));
  return count;
}

const device = {
  getInputRegister: (address) => address,
  getHoldingRegister: (address) => (address === 0 ? next() : registers.get(address) || 0),
  getCoil: (address) => coils.get(address) || false,
  getDiscreteInput: () => false,
  setRegister: (address, value) => void registers.set(address, value),
  setCoil: (address, value) => void coils.set(address, value),
};
const server = new ServerTCP(device, { host: "127.0.0.1", port: Number(port), unitID: 1 });
server.on("initialized", () => process.stdout.write("ready\n"));
server.on("socketError", () => {});
