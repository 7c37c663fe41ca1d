// Clients of Node.js with their defaults: `node round.mjs HOST PORT PREFIX`.
// Prints one line of JSON for each probe: client, version, probe, result.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import assert from "node:assert/strict";
import express from "express";
import session from "express-session";
import { RedisStore } from "connect-redis";
import Redis from "ioredis";
import { createClient } from "redis";

const [host, port, prefix] = process.argv.slice(2);
const libraries = createRequire(import.meta.url).resolve.paths("redis")[0];
const version = (name) => JSON.parse(readFileSync(`${libraries}/${name}/package.json`)).version;

async function probe(client, name, work) {
  let result = "yes";
  try {
    await work();
  } catch (error) {
    result = String(error.message);
  }
  console.log(JSON.stringify({ client, version: version(client === "node-redis" ? "redis" : client), probe: name, result }));
}

async function nodeRedis() {
  const client = createClient({ url: `redis://${host}:${port}` });
  client.on("error", () => {});
  const key = (name) => `${prefix}:node-redis:${name}`;
  await probe("node-redis", "strings", async () => {
    await client.connect();
    assert.equal(await client.set(key("a"), "1", { EX: 100 }), "OK");
    assert.equal(await client.get(key("a")), "1");
    assert.deepEqual(await client.mGet([key("a"), key("none")]), ["1", null]);
    assert.ok((await client.ttl(key("a"))) > 90);
    assert.equal(await client.del(key("a")), 1);
  });
  await probe("node-redis", "pipeline", async () => {
    // Commands of one tick travel together.
    const answers = await Promise.all([client.set(key("p"), "1"), client.get(key("p")), client.ttl(key("p"))]);
    assert.deepEqual(answers, ["OK", "1", -1]);
    assert.deepEqual(await client.multi().set(key("q"), "1").get(key("q")).execAsPipeline(), ["OK", "1"]);
  });
  await probe("node-redis", "scan", async () => {
    const met = [];
    for await (const keys of client.scanIterator({ MATCH: key("[pq]"), COUNT: 1000 })) met.push(...keys);
    assert.deepEqual(met.sort(), [key("p"), key("q")]);
  });
  await probe("node-redis", "transaction", () => client.multi().set(key("t"), "1").exec());
  await probe("node-redis", "nothing of a transaction", async () => assert.equal(await client.get(key("t")), null));
  client.destroy();
}

async function ioredis() {
  const client = new Redis({ host, port });
  client.on("error", () => {});
  const key = (name) => `${prefix}:ioredis:${name}`;
  await probe("ioredis", "strings", async () => {
    assert.equal(await client.set(key("a"), "1", "EX", 100), "OK");
    assert.equal(await client.get(key("a")), "1");
    assert.deepEqual(await client.mget(key("a"), key("none")), ["1", null]);
    assert.ok((await client.ttl(key("a"))) > 90);
    assert.equal(await client.del(key("a")), 1);
  });
  await probe("ioredis", "pipeline", async () => {
    const answers = await client.pipeline().set(key("p"), "1").get(key("p")).ttl(key("p")).exec();
    assert.deepEqual(answers, [[null, "OK"], [null, "1"], [null, -1]]);
  });
  await probe("ioredis", "scan", async () => {
    const met = [];
    for await (const keys of client.scanStream({ match: key("*"), count: 1000 })) met.push(...keys);
    assert.deepEqual(met, [key("p")]);
  });
  await probe("ioredis", "transaction", () => client.multi().set(key("t"), "1").exec());
  await probe("ioredis", "nothing of a transaction", async () => assert.equal(await client.get(key("t")), null));
  client.disconnect();
}

// A login that survives from request to request, through an application as people write them.
async function connectRedis() {
  const client = createClient({ url: `redis://${host}:${port}` });
  await client.connect();
  const store = new RedisStore({ client, prefix: `${prefix}:session:` });
  const app = express();
  app.use(session({ store, secret: "s", resave: false, saveUninitialized: false, cookie: { maxAge: 60_000 } }));
  app.get("/in", (request, response) => {
    request.session.visits = (request.session.visits ?? 0) + 1;
    response.json(request.session.visits);
  });
  app.get("/out", (request, response) => request.session.destroy(() => response.json("bye")));
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  const at = `http://127.0.0.1:${server.address().port}`;
  let cookie = "";
  const ask = async (path) => {
    const response = await fetch(at + path, { headers: { cookie } });
    cookie = response.headers.get("set-cookie")?.split(";")[0] ?? cookie;
    return response.json();
  };
  const method = (name, ...given) =>
    new Promise((resolve, reject) =>
      store[name](...given, (error, value) => (error ? reject(error) : resolve(value))),
    );
  await probe("connect-redis", "a session over several requests", async () => {
    assert.deepEqual([await ask("/in"), await ask("/in"), await ask("/in")], [1, 2, 3]);
  });
  await probe("connect-redis", "`touch`, `length`, `ids`, `all`", async () => {
    const [id] = await method("ids");
    await method("touch", id, { cookie: { maxAge: 120_000 } });
    assert.equal(await method("length"), 1);
    assert.equal((await method("all"))[0].visits, 3);
    assert.ok((await client.ttl(`${prefix}:session:${id}`)) > 60);
  });
  await probe("connect-redis", "`destroy`, `clear`", async () => {
    assert.equal(await ask("/out"), "bye");
    await ask("/in");
    await method("clear");
    assert.equal(await method("length"), 0);
  });
  server.closeAllConnections();
  server.close();
  client.destroy();
}

await nodeRedis();
await ioredis();
await connectRedis();
