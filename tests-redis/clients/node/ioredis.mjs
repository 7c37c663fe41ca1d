// ioredis as it comes, with one address, in place of the class of docs/guides/node.md: it connects again by itself, and
// sends again what was not answered.
import Redis from "ioredis";

class Tontine {
  constructor([address]) {
    const [host, port] = address.split(":");
    this.client = new Redis(port, host);
    this.client.on("error", () => {});
  }

  close() {
    this.client.disconnect();
  }
}

async function read(tontine, cart) {
  const value = await tontine.client.get(cart);
  return ["", value === null ? [] : [value.split(",")]];
}

function write(tontine, cart, context, items) {
  return tontine.client.set(cart, items.join(","));
}

