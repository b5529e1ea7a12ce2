// A server of node-opcua whose variables change, and which writes down each value that it had.
//
// node opcua_server.cjs PORT LOG FOLDER OPTIONS: FOLDER has node_modules. Certificates are made beside LOG.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");

const [port, log, folder, given] = process.argv.slice(2);
const options = JSON.parse(given);
const load = createRequire(path.join(folder, "node_modules", "node-opcua-server", "package.json"));
const { OPCUAServer } = load("node-opcua-server");
const { OPCUACertificateManager } = load("node-opcua-certificate-manager");
const { Variant, DataType } = load("node-opcua-variant");
const { StatusCodes } = load("node-opcua-status-code");

async function main() {
  const server = new OPCUAServer({
    port: Number(port),
    hostname: "127.0.0.1",
    serverCertificateManager: new OPCUACertificateManager({ rootFolder: `${log}-pki` }),
    userCertificateManager: new OPCUACertificateManager({ rootFolder: `${log}-users` }),
    nodeset_filename: [load("node-opcua-nodesets").nodesets.standard],
    // Otherwise it hands a subscription over to sessions of the same user alone, and takes nobody without security for one.
    allowAnonymousSubscriptionTransferOnUnsecuredChannel: options.hands_over,
    // Each change is sent, and none is left out between two samples.
    serverCapabilities: { minSupportedSampleRate: options.sampling_ms },
    serverInfo: { applicationUri: "urn:example:press-server" },
  });
  await server.initialize();
  const space = server.engine.addressSpace;
  const own = space.registerNamespace("urn:example:press");
  const press = own.addObject({
    organizedBy: space.rootFolder.objects,
    browseName: "Press",
    nodeId: "s=Press",
    eventNotifier: 1,
    notifierOf: options.events ? space.rootFolder.objects.server : undefined,
  });
  const variables = [];
  for (let number = 0; number < options.variables; number++) {
    const name = `v${number}`;
    const variable = own.addVariable({
      componentOf: press,
      browseName: name,
      nodeId: `s=${name}`,
      dataType: "UInt32",
      accessLevel: "CurrentRead | CurrentWrite",
    });
    variables.push([name, variable]);
  }
  own.addVariable({
    organizedBy: space.rootFolder.objects,
    browseName: "Speed",
    nodeId: "s=speed",
    dataType: "Double",
    accessLevel: "CurrentRead | CurrentWrite",
    value: { dataType: DataType.Double, value: 0 },
  });
  if (options.events) {
    space.installAlarmsAndConditionsService();
    const oil = own.addVariable({
      componentOf: press,
      eventSourceOf: press,
      browseName: "Oil",
      nodeId: "s=oil",
      dataType: "Double",
      value: { dataType: DataType.Double, value: 10 },
    });
    const limits = { lowLowLimit: 1, lowLimit: 5, highLimit: 90, highHighLimit: 95 };
    own.instantiateExclusiveLimitAlarm("ExclusiveLimitAlarmType", {
      browseName: "OilLow",
      conditionName: "OilLow",
      conditionSource: oil,
      inputNode: oil,
      ...limits,
    });
    // Before the first client: only a refresh tells of it.
    oil.setValueFromSource({ dataType: DataType.Double, value: 2 });
  }
  await server.start();
  process.stdout.write("ready\n");
  let number = options.first;
  const out = fs.openSync(log, "a");
  setInterval(() => {
    for (const [name, variable] of variables) {
      const time = new Date();
      fs.writeSync(out, `${name} ${number} ${time.toISOString().replace("Z", "000+00:00")}\n`);
      variable.setValueFromSource(new Variant({ dataType: DataType.UInt32, value: number }), StatusCodes.Good, time);
    }
    number += 1;
  }, options.every_s * 1000);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
