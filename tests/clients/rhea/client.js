// A stock rhea client: sends what it is told, receives it, answers with one line of JSON for each step.
// Usage: node client.js PORT QUEUE
'use strict';

const rhea = require('rhea');

const [port, queue] = process.argv.slice(2);
const say = (event, facts) => console.log(JSON.stringify({ event, ...facts }));
const connection = rhea.create_container({ id: 'rhea-client' }).connect({ port: Number(port), host: '127.0.0.1', reconnect: false });

const messages = [
  { body: 'text', durable: true, message_id: 'm1', application_properties: { colour: 'red', n: 7 } },
  { body: rhea.message.data_section(Buffer.from([0, 1, 2, 255])), subject: 'bytes' },
  { body: { list: [1, 2, 3], deep: { yes: true } }, correlation_id: rhea.generate_uuid() },
  { body: 'x'.repeat(300000) },
];
let sent = false;
let accepted = 0;
let received = 0;

connection.on('sendable', (context) => {
  if (sent) return;
  sent = true;
  messages.forEach((message) => context.sender.send(message));
});
connection.on('accepted', () => {
  accepted += 1;
  if (accepted === messages.length) {
    say('accepted', { count: accepted });
    connection.open_receiver({ source: queue, credit_window: 0, autoaccept: false }).add_credit(messages.length);
  }
});
connection.on('message', (context) => {
  const { message, delivery } = context;
  const body = message.body;
  say('message', {
    id: message.message_id,
    kind: body && body.typecode !== undefined ? 'data' : typeof body,
    size: typeof body === 'string' ? body.length : undefined,
    content: typeof body === 'object' && body.content ? [...body.content] : typeof body === 'string' ? body.slice(0, 4) : body,
    properties: message.application_properties,
    durable: message.durable,
  });
  delivery.accept();
  received += 1;
  if (received === messages.length) connection.close();
});
connection.on('connection_close', () => say('closed', {}));
['connection_error', 'session_error', 'sender_error', 'receiver_error', 'rejected', 'disconnected'].forEach((event) =>
  connection.on(event, (context) => say('error', { of: event, text: String(context.error || '') })));
connection.open_sender(queue);
