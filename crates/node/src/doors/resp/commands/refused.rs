//! Commands of Redis that are refused on purpose, each with the reason and what to use instead.
//!
//! The answer begins like Redis's for a command that it does not know, because clients and frameworks rely on that when
//! they look for another way. Which commands are carried out is not said here: `commands!` is asked first.

/// Why a command of Redis is refused, and what to use instead; `None` for a name that Redis does not know either.
pub(super) fn why(name: &[u8]) -> Option<String> {
    let mut lower = [0_u8; 24];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let name = std::str::from_utf8(lower).ok()?;
    let mut groups = GROUPS.iter();
    let group = groups.find(|group| group.names.split_ascii_whitespace().any(|known| known == name))?;
    Some(format!("{} {}", group.why, group.instead))
}

/// Commands that are refused for the same reason.
struct Group {
    names: &'static str,
    /// One sentence.
    why: &'static str,
    /// What to do, in one sentence or two.
    instead: &'static str,
}

const GROUPS: &[Group] = &[
    Group {
        names: "multi exec discard watch unwatch",
        why: "Tontine has no transactions, because each key has its own quorum.",
        instead: "Use a pipeline without MULTI (redis-py: pipeline(transaction=False)); to change a value that \
              you have read, use TONTINE.GET and TONTINE.PUT with its context.",
    },
    Group {
        names: "incr decr incrby decrby incrbyfloat",
        why: "Tontine has no counters, because two nodes that count at the same time would lose one count.",
        instead: "Keep one key for each writer and add them up, or use TONTINE.GET and TONTINE.PUT with its \
              context in a store that keeps siblings.",
    },
    Group {
        names: "append setrange setbit bitop bitfield bitfield_ro bitcount bitpos getbit lcs",
        why: "Tontine replaces values whole and does not change parts of them.",
        instead: "Use GET, change the value in the program, and SET it.",
    },
    Group {
        names: "msetnx rename renamenx copy move swapdb sort sort_ro",
        why: "Tontine has no command that changes several keys as one, because each key has its own \
              quorum.",
        instead: "Use SET with NX for each key, or GET, SET and DEL one after the other.",
    },
    Group {
        names: "eval eval_ro evalsha evalsha_ro script fcall fcall_ro function",
        why: "Tontine runs no scripts, because no node holds all keys alone.",
        instead: "Do the work in the program; to change a value that you have read, use TONTINE.GET and \
              TONTINE.PUT with its context.",
    },
    Group {
        names: "subscribe unsubscribe psubscribe punsubscribe ssubscribe sunsubscribe publish spublish pubsub",
        why: "Tontine stores values; it does not pass messages.",
        instead: "Use a message broker, or poll keys with MGET.",
    },
    Group {
        names: "lpush rpush lpushx rpushx lpop rpop llen lrange lindex lset linsert lrem ltrim lpos lmove rpoplpush \
                lmpop blpop brpop blmove brpoplpush blmpop",
        why: "Tontine has no lists.",
        instead: "Store the list as one value and use SET, or one key for each item; for a queue use a message \
              broker.",
    },
    Group {
        names: "hset hget hmset hmget hgetall hdel hexists hlen hkeys hvals hstrlen hsetnx hincrby hincrbyfloat \
                hrandfield hscan hexpire hpexpire httl hpttl hpersist hgetdel hgetex hsetex",
        why: "Tontine has no hashes.",
        instead: "Store the fields as one value (JSON, for example), or one key for each field and use MGET \
              and MSET.",
    },
    Group {
        names: "sadd srem smembers sismember smismember scard spop srandmember smove sinter sinterstore sintercard \
                sunion sunionstore sdiff sdiffstore sscan",
        why: "Tontine has no sets.",
        instead: "Store the members as one value, or one key for each member and use EXISTS. In a store that \
              keeps siblings, writers can merge what they added (docs/guides/).",
    },
    Group {
        names: "zadd zrem zscore zmscore zincrby zcard zcount zlexcount zrange zrangestore zrevrange zrangebyscore \
                zrevrangebyscore zrangebylex zrevrangebylex zrank zrevrank zremrangebyrank zremrangebyscore \
                zremrangebylex zpopmin zpopmax bzpopmin bzpopmax zmpop bzmpop zrandmember zunion zunionstore zinter \
                zinterstore zintercard zdiff zdiffstore zscan",
        why: "Tontine has no sorted sets.",
        instead: "Store the members with their scores as one value, and sort in the program.",
    },
    Group {
        names: "xadd xread xrange xrevrange xlen xdel xtrim xgroup xreadgroup xack xclaim xautoclaim xpending xinfo \
                xsetid",
        why: "Tontine has no streams.",
        instead: "Use a log or a message broker, or one key for each entry.",
    },
    Group {
        names: "geoadd geodist geohash geopos geosearch geosearchstore georadius georadius_ro georadiusbymember \
                georadiusbymember_ro pfadd pfcount pfmerge pfdebug pfselftest",
        why: "Tontine stores strings and no other type.",
        instead: "Store the value that the program computes, and use SET.",
    },
    Group {
        names: "flushall flushdb",
        why: "Tontine does not empty a store at once: every client and node shares it.",
        instead: "Delete your own keys (SCAN with MATCH, then UNLINK), or give them a time to live.",
    },
    Group {
        names: "dump restore restore-asking migrate",
        why: "Tontine does not hand out values in Redis's own form.",
        instead: "Use the export and load of Tontine's command line.",
    },
    Group {
        names: "save bgsave bgrewriteaof lastsave",
        why: "Tontine stores each write as its durability setting says; there is nothing to save.",
        instead: "Use the export of Tontine's command line for a backup.",
    },
    Group {
        names: "wait waitaof",
        why: "Tontine answers a write when W replicas have acknowledged it; there is nothing to wait for.",
        instead: "The store's definition says how many W are.",
    },
    Group {
        names: "replicaof slaveof psync sync failover replconf role",
        why: "Tontine replicates by itself, and all its nodes are equal.",
        instead: "Use INFO, or the status of Tontine's command line, to see them.",
    },
    Group {
        names: "cluster readonly readwrite asking",
        why: "Any node answers for any key.",
        instead: "Connect with a plain client (not a cluster client) to any of the addresses.",
    },
    Group {
        names: "monitor slowlog latency memory debug",
        why: "Tontine reports what it does in other ways.",
        instead: "Use INFO, the node's metrics, or the doctor of Tontine's command line.",
    },
    Group {
        names: "module",
        why: "Tontine has no modules.",
        instead: "Use the commands that COMMAND LIST names.",
    },
    Group {
        names: "shutdown",
        why: "A client cannot stop a node.",
        instead: "Send the node's process SIGTERM, which finishes its requests first.",
    },
];

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn no_command_is_listed_as_refused_twice_or_also_carried_out() {
        let mut seen = std::collections::BTreeSet::new();
        for name in GROUPS.iter().flat_map(|group| group.names.split_ascii_whitespace()) {
            assert!(seen.insert(name), "{name} is in two groups");
            assert_eq!(Kind::of(name.as_bytes()), None, "{name} is carried out");
        }
    }

    #[test]
    fn reasons_are_found_by_name_in_any_case() {
        assert!(why(b"Incr").is_some_and(|why| why.contains("counters")));
        assert_eq!(why(b"nosuch"), None);
        assert_eq!(why(b""), None);
        assert_eq!(why(&[b'x'; 400]), None);
    }

    #[test]
    fn every_reason_is_a_line_of_whole_sentences() {
        for Group { names, why, instead } in GROUPS {
            for text in [why, instead] {
                assert!(
                    text.ends_with('.') && text.starts_with(|c: char| c.is_ascii_uppercase()),
                    "{names}: {text}"
                );
                assert!(text.is_ascii() && !text.contains(['\r', '\n']), "{names}: {text}");
            }
        }
    }
}
