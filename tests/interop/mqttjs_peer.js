// MQTT.js under the control of peers.py: a command per line of JSON on stdin, answers and messages on stdout.
const mqtt = require('mqtt')
const readline = require('readline')

let client
const say = (said) => process.stdout.write(JSON.stringify(said) + '\n')
const answer = (error) => say(error ? { kind: 'failed', error: String(error) } : { kind: 'done' })

function pairsOf (properties) {
  const found = (properties && properties.userProperties) || {}
  return Object.entries(found).flatMap(([name, value]) => [].concat(value).map((one) => [name, one]))
}

function userProperties (pairs) {
  const found = {}
  for (const [name, value] of pairs) found[name] = (found[name] || []).concat(value)
  return found
}

const commands = {
  connect (said) {
    const version5 = said.protocolVersion === 5
    client = mqtt.connect({
      host: '127.0.0.1',
      port: said.port,
      clientId: said.clientId,
      protocolVersion: said.protocolVersion,
      protocolId: said.protocolVersion === 3 ? 'MQIsdp' : 'MQTT',
      clean: said.clean,
      reconnectPeriod: 0,
      properties: version5 ? { sessionExpiryInterval: said.expiry } : undefined,
      will: said.will ? { ...said.will, payload: Buffer.from(said.will.payload) } : undefined
    })
    client.on('message', (topic, payload, packet) => say({
      kind: 'message',
      topic,
      payload: payload.toString('hex'),
      qos: packet.qos,
      retain: packet.retain,
      pairs: pairsOf(packet.properties)
    }))
    client.once('connect', () => answer())
    client.once('error', answer)
  },
  subscribe (said) {
    client.subscribe(said.filter, { qos: said.qos }, (error) => answer(error))
  },
  publish (said) {
    const properties = said.pairs.length ? { userProperties: userProperties(said.pairs) } : undefined
    client.publish(said.topic, Buffer.from(said.payload, 'hex'), { qos: said.qos, retain: said.retain, properties }, (error) => answer(error))
  },
  burst (said) {
    // All at once, however many the server can take, and again after a disconnect: as applications of MQTT.js do.
    client.options.reconnectPeriod = 100
    let left = said.count
    for (let n = 0; n < said.count; n++) {
      client.publish(said.topic, String(n), { qos: said.qos }, (error) => {
        if (error) answer(error)
        else if (--left === 0) answer()
      })
    }
  },
  close () {
    client.end(false, () => { answer(); process.exit(0) })
  }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const said = JSON.parse(line)
  commands[said.do](said)
})
