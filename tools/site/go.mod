module github.com/adverb-rdma/adverb/tools/site

go 1.26.0

require (
	github.com/adverb-rdma/adverb v0.0.0
	github.com/chromedp/cdproto v0.160.1
	github.com/chromedp/chromedp v0.23.1
	github.com/yuin/goldmark v1.8.7
	golang.org/x/net v0.62.0
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect

replace github.com/adverb-rdma/adverb => ../..
