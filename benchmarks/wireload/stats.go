package main

import (
	"fmt"
	"slices"
)

// spread is the distribution of a series of times, in the unit of the series.
type spread struct {
	Count int     `json:"count"`
	Min   float64 `json:"min"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// spreadOf sorts the values and returns their percentiles, each multiplied by unit.
func spreadOf(values []int32, unit float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	at := func(q float64) float64 { return float64(values[int(q*float64(len(values)-1))]) * unit }
	return spread{len(values), at(0), at(.5), at(.9), at(.99), at(.999), at(1)}
}

// countsOf returns each distinct value of a sorted series with its number of occurrences.
func countsOf(sorted []int32) [][2]int32 {
	var counts [][2]int32
	for _, value := range sorted {
		if n := len(counts); n > 0 && counts[n-1][0] == value {
			counts[n-1][1]++
		} else {
			counts = append(counts, [2]int32{value, 1})
		}
	}
	return counts
}

func (s spread) print(name string) {
	if s.Count == 0 {
		return
	}
	fmt.Printf("%s ms: min %.3g p50 %.3g p90 %.3g p99 %.3g p99.9 %.3g max %.3g\n", name, s.Min, s.P50, s.P90, s.P99,
		s.P999, s.Max)
}

type sendReport struct {
	Sent     int     `json:"sent"`
	Rejected int     `json:"rejected"`
	FirstBad string  `json:"first_rejection,omitempty"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"per_second"`
	StartMs  int64   `json:"start_ms"`
	EndMs    int64   `json:"end_ms"`
	AckMs    spread  `json:"ack_ms"`
}

func (r *sendReport) print() {
	fmt.Printf("sent %d in %.2f s: %.0f msg/s, rejected %d\n", r.Sent, r.Seconds, r.Rate, r.Rejected)
	if r.FirstBad != "" {
		fmt.Println("first rejection:", r.FirstBad)
	}
	r.AckMs.print("ack latency")
}

// clamp limits a time to 32 bits.
func clamp(value int64) int32 {
	const most = 1<<31 - 1
	return int32(max(-most, min(most, value)))
}
