# Appended to the classes of docs/guides/python.md: writers go on until a file appears, and say what came of it.
import json
import os
import threading

WRITERS = 4
ITEMS_MAX = 30

key, ends, *addresses = sys.argv[1:]
tontine = Tontine(addresses)
errors, missing, acknowledged = [], [], {}


def fill(cart):
    """Adds items to one cart, each after what it has read there."""
    for item in range(ITEMS_MAX):
        if os.path.exists(ends):
            return
        try:
            context, siblings = read(tontine, cart)
            found = set().union(*siblings) - {""}
            missing.extend(f"{cart} {item}" for item in acknowledged[cart] if str(item) not in found)
            write(tontine, cart, context, found | {str(item)})
            acknowledged[cart].append(item)
        except redis.RedisError as error:
            errors.append(f"{type(error).__name__}: {error}")
        time.sleep(0.002)


def fill_all(writer):
    count = 0
    while not os.path.exists(ends):
        cart = f"{key}:{writer}:{count}"
        acknowledged[cart] = []
        fill(cart)
        count += 1


writers = [threading.Thread(target=fill_all, args=(writer,)) for writer in range(WRITERS)]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
print(json.dumps({"errors": errors, "missing": missing, "acknowledged": acknowledged}))
