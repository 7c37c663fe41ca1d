// Beside the program of docs/guides/go.md: writers go on until a file appears, and say what came of it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	writers  = 4
	itemsMax = 30
)

var (
	lock         sync.Mutex
	failures     = []string{}
	missing      = []string{}
	acknowledged = map[string][]int{}
)

func note(list *[]string, text string) {
	lock.Lock()
	defer lock.Unlock()
	*list = append(*list, text)
}

func main() {
	key, ends, tontine := os.Args[1], os.Args[2], open(os.Args[3:])
	ctx := context.Background()
	over := func() bool {
		_, err := os.Stat(ends)
		return err == nil
	}
	// Adds one item to a cart after what was read there; answers whether that was acknowledged.
	add := func(cart string, item int, before []int) (done bool) {
		defer func() {
			if failed := recover(); failed != nil {
				note(&failures, fmt.Sprint(failed))
			}
		}()
		seen, siblings := read(ctx, tontine, cart)
		found := map[string]bool{}
		for _, items := range siblings {
			for _, known := range items {
				found[known] = true
			}
		}
		delete(found, "")
		for _, known := range before {
			if !found[strconv.Itoa(known)] {
				note(&missing, fmt.Sprintf("%s %d", cart, known))
			}
		}
		found[strconv.Itoa(item)] = true
		var union []string
		for known := range found {
			union = append(union, known)
		}
		write(ctx, tontine, cart, seen, union...)
		return true
	}
	var all sync.WaitGroup
	for writer := 0; writer < writers; writer++ {
		all.Add(1)
		go func(writer int) {
			defer all.Done()
			for count := 0; !over(); count++ {
				cart := fmt.Sprintf("%s:%d:%d", key, writer, count)
				done := []int{}
				for item := 0; item < itemsMax && !over(); item++ {
					if add(cart, item, done) {
						done = append(done, item)
					}
					time.Sleep(2 * time.Millisecond)
				}
				lock.Lock()
				acknowledged[cart] = done
				lock.Unlock()
			}
		}(writer)
	}
	all.Wait()
	printed, _ := json.Marshal(map[string]any{"errors": failures, "missing": missing, "acknowledged": acknowledged})
	fmt.Println(string(printed))
}
