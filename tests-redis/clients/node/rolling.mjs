// Appended to the class of docs/guides/node.md: writers go on until a file appears, and say what came of it.
import { existsSync } from "node:fs";

const WRITERS = 4;
const ITEMS_MAX = 30;

const [key, ends, ...addresses] = process.argv.slice(2);
const tontine = new Tontine(addresses);
const errors = [];
const missing = [];
const acknowledged = {};

// Adds items to one cart, each after what it has read there.
async function fill(cart) {
  for (let item = 0; item < ITEMS_MAX && !existsSync(ends); item++) {
    try {
      const [context, siblings] = await read(tontine, cart);
      const found = siblings.flat().filter((known) => known !== "");
      const lost = acknowledged[cart].filter((known) => !found.includes(String(known)));
      missing.push(...lost.map((known) => `${cart} ${known}`));
      await write(tontine, cart, context, [...found, String(item)]);
      acknowledged[cart].push(item);
    } catch (error) {
      errors.push(String(error));
    }
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

async function fillAll(writer) {
  for (let count = 0; !existsSync(ends); count++) {
    const cart = `${key}:${writer}:${count}`;
    acknowledged[cart] = [];
    await fill(cart);
  }
}

await Promise.all(Array.from({ length: WRITERS }, (_, writer) => fillAll(writer)));
console.log(JSON.stringify({ errors, missing, acknowledged }));
tontine.close();
