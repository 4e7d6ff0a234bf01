// Drives rhea over a WebSocket: sends and receives, and says what came as one line of JSON.
// Usage: node amqp_websocket.js URL ADDRESS BYTES
import { createHash } from 'node:crypto';
import rhea from 'rhea';
import WebSocket from 'ws';

const [url, address, bytes] = process.argv.slice(2);
const bodies = [Buffer.from('hello'), Buffer.alloc(Number(bytes), 'xyz')];
const digest = (data) => createHash('sha256').update(data).digest('hex');
const container = rhea.create_container();
const found = { accepted: 0, messages: [], sent: bodies.map(digest) };

const timer = setTimeout(() => {
  console.error('not within 50 s');
  process.exit(2);
}, 50000);

container.on('sendable', ({ sender }) => {
  while (sender.credit > 0 && bodies.length > 0) {
    sender.send({ durable: true, body: rhea.message.data_section(bodies.shift()) });
  }
});
const ended = (connection) => {
  if (found.accepted === 2 && found.messages.length === 2) connection.close();
};
container.on('accepted', ({ connection }) => {
  found.accepted += 1;
  ended(connection);
});
container.on('message', ({ message, connection }) => {
  found.messages.push(digest(message.body.content));
  ended(connection);
});
container.on('connection_close', () => {
  clearTimeout(timer);
  console.log(JSON.stringify(found));
});
container.on('disconnected', ({ error }) => {
  if (error) found.error = error.message;
});

const connect = container.websocket_connect(WebSocket);
const connection = container.connect({
  connection_details: connect(url, ['amqp']),
  reconnect: false,
});
connection.open_receiver(address);
connection.open_sender(address);
