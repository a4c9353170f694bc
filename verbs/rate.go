package verbs

// Rate is a limit on how fast packets leave on a path (enum ibv_rate). Its values are codes.
type Rate uint8

// The rates (IBV_RATE_*), in Gbit/s.
const (
	RateMax  Rate = 0 // no limit
	Rate2_5  Rate = 2 // IBV_RATE_2_5_GBPS
	Rate10   Rate = 3
	Rate30   Rate = 4
	Rate5    Rate = 5
	Rate20   Rate = 6
	Rate40   Rate = 7
	Rate60   Rate = 8
	Rate80   Rate = 9
	Rate120  Rate = 10
	Rate14   Rate = 11
	Rate56   Rate = 12
	Rate112  Rate = 13
	Rate168  Rate = 14
	Rate25   Rate = 15
	Rate100  Rate = 16
	Rate200  Rate = 17
	Rate300  Rate = 18
	Rate28   Rate = 19
	Rate50   Rate = 20
	Rate400  Rate = 21
	Rate600  Rate = 22
	Rate800  Rate = 23
	Rate1200 Rate = 24
)

var rateNames = names[Rate]{"RATE", map[Rate]string{
	RateMax: "RATE_MAX", Rate2_5: "RATE_2_5_GBPS", Rate5: "RATE_5_GBPS", Rate10: "RATE_10_GBPS",
	Rate20: "RATE_20_GBPS", Rate30: "RATE_30_GBPS", Rate40: "RATE_40_GBPS", Rate60: "RATE_60_GBPS",
	Rate80: "RATE_80_GBPS", Rate120: "RATE_120_GBPS", Rate14: "RATE_14_GBPS", Rate56: "RATE_56_GBPS",
	Rate112: "RATE_112_GBPS", Rate168: "RATE_168_GBPS", Rate25: "RATE_25_GBPS", Rate100: "RATE_100_GBPS",
	Rate200: "RATE_200_GBPS", Rate300: "RATE_300_GBPS", Rate28: "RATE_28_GBPS", Rate50: "RATE_50_GBPS",
	Rate400: "RATE_400_GBPS", Rate600: "RATE_600_GBPS", Rate800: "RATE_800_GBPS", Rate1200: "RATE_1200_GBPS",
}}

// String returns the C library's name without IBV_, such as RATE_100_GBPS.
func (r Rate) String() string { return rateNames.name(r) }
