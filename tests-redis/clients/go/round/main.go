// Command round tries go-redis with its defaults: `round HOST:PORT PREFIX`.
// It prints one line of JSON for each probe: client, version, probe, result.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func probe(name string, work func() error) {
	result := "yes"
	if err := work(); err != nil {
		result = err.Error()
	}
	line, _ := json.Marshal(map[string]string{
		"client": "go-redis", "version": redis.Version(), "probe": name, "result": result,
	})
	fmt.Println(string(line))
}

func same(got, wanted any) error {
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		return fmt.Errorf("%v instead of %v", got, wanted)
	}
	return nil
}

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	defer client.Close()
	key := func(name string) string { return os.Args[2] + ":go-redis:" + name }
	probe("strings", func() error {
		if err := client.Set(ctx, key("a"), "1", 100*time.Second).Err(); err != nil {
			return err
		}
		if err := same(client.Get(ctx, key("a")).Val(), "1"); err != nil {
			return err
		}
		if err := same(client.MGet(ctx, key("a"), key("none")).Val(), []any{"1", nil}); err != nil {
			return err
		}
		if left := client.TTL(ctx, key("a")).Val(); left < 90*time.Second {
			return fmt.Errorf("%v left", left)
		}
		return same(client.Del(ctx, key("a")).Val(), 1)
	})
	probe("pipeline", func() error {
		answers, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key("p"), "1", 0)
			pipe.Get(ctx, key("p"))
			return nil
		})
		if err != nil {
			return err
		}
		return same(answers[1].(*redis.StringCmd).Val(), "1")
	})
	probe("scan", func() error {
		var met []string
		walk := client.Scan(ctx, 0, key("*"), 1000).Iterator()
		for walk.Next(ctx) {
			met = append(met, walk.Val())
		}
		if err := walk.Err(); err != nil {
			return err
		}
		return same(met, []string{key("p")})
	})
	probe("transaction", func() error {
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key("t"), "1", 0)
			return nil
		})
		return err
	})
	probe("nothing of a transaction", func() error {
		return same(client.Exists(ctx, key("t")).Val(), 0)
	})
}
