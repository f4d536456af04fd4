// HTTP server and client in one program: `pages.js server PORT`, `pages.js client PORT`.
//
// The server answers GET /LENGTH with so many bytes, and a POST with the checksum of what it was sent.
'use strict';
const http = require('http');
const crypto = require('crypto');

const [, , role, port] = process.argv;
const CONNECTIONS = 3;
const SMALL = 50;
const LARGE = 12;
const LENGTH = 3000000;

function page(length) {
  const block = crypto.createHash('sha512').update(`${length}`).digest();
  const out = Buffer.alloc(length);
  for (let at = 0; at < length; at += block.length) block.copy(out, at);
  for (let at = 0; at + 4 <= length; at += 1000) out.writeUInt32LE(at, at);
  return out;
}

function sum(data) {
  return crypto.createHash('sha256').update(data).digest('hex');
}

function serve() {
  const pages = new Map();
  http.createServer((request, response) => {
    if (request.method === 'POST') {
      const digest = crypto.createHash('sha256');
      request.on('data', (part) => digest.update(part));
      request.on('end', () => response.end(digest.digest('hex')));
      return;
    }
    const length = Number(request.url.slice(1));
    if (!pages.has(length)) pages.set(length, page(length));
    response.end(pages.get(length));
  }).listen(Number(port), '127.0.0.1');
}

function ask(agent, method, path, body) {
  return new Promise((resolve, reject) => {
    const options = { agent, method, path, port: Number(port), host: '127.0.0.1' };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(body);
  });
}

// One kept connection: small pages, large ones, uploads.
async function talk(number) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const digest = crypto.createHash('sha256');
  for (let i = 0; i < SMALL + LARGE; i += 1) {
    const length = i < SMALL ? 1 + i * 17 : LENGTH + number * 1000 + i;
    const got = await ask(agent, 'GET', `/${length}`);
    if (!got.equals(page(length))) throw new Error(`MISMATCH: page of ${length}`);
    digest.update(got);
  }
  for (let i = 0; i < LARGE; i += 1) {
    const body = page(LENGTH - number * 1000 - i);
    const got = (await ask(agent, 'POST', '/', body)).toString();
    if (got !== sum(body)) throw new Error(`MISMATCH: upload ${i}`);
    digest.update(got);
  }
  agent.destroy();
  return digest.digest('hex');
}

if (role === 'server') {
  serve();
} else {
  const all = Array.from({ length: CONNECTIONS }, (_, number) => talk(number));
  Promise.all(all).then((digests) => console.log(digests.join('\n')));
}
