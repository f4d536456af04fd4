// Echo server and clients in one program: `echo.js server PORT`, `echo.js client PORT`.
'use strict';
const net = require('net');
const crypto = require('crypto');

const [, , role, port] = process.argv;
const CLIENTS = 6;
const MESSAGES = 200;
const BULK = 3000000;

function pattern(length, seed) {
  const block = crypto.createHash('sha512').update(`${seed}`).digest();
  const out = Buffer.alloc(length);
  for (let at = 0; at < length; at += block.length) block.copy(out, at);
  for (let at = 0; at + 4 <= length; at += 1000) out.writeUInt32LE(at, at);
  return out;
}

function client(number, done) {
  const socket = net.connect(Number(port), '127.0.0.1');
  const digest = crypto.createHash('sha256');
  let index = 0;
  let expected = null;
  let parts = [];
  let length = 0;
  function next() {
    if (index > MESSAGES) {
      socket.end();
      return;
    }
    const size = index === MESSAGES ? BULK : 1 + (index * 37) % 3000;
    expected = pattern(size, `${number}-${index}`);
    index += 1;
    parts = [];
    length = 0;
    socket.write(expected);
  }
  socket.on('connect', next);
  socket.on('data', (part) => {
    parts.push(part);
    length += part.length;
    if (length < expected.length) return;
    const back = Buffer.concat(parts);
    if (!back.equals(expected)) {
      console.error(`MISMATCH: client ${number}, message ${index}`);
      process.exit(1);
    }
    digest.update(back);
    next();
  });
  socket.on('close', () => done(number, digest.digest('hex')));
  socket.on('error', (error) => {
    console.error(`client ${number}: ${error}`);
    process.exit(1);
  });
}

if (role === 'server') {
  net.createServer((socket) => {
    socket.on('error', (error) => console.error(`server: ${error}`));
    socket.pipe(socket);
  }).listen(Number(port), '127.0.0.1');
} else {
  const digests = [];
  for (let number = 0; number < CLIENTS; number += 1) {
    client(number, (which, digest) => {
      digests[which] = digest;
      if (digests.filter(Boolean).length === CLIENTS) console.log(digests.join('\n'));
    });
  }
}
