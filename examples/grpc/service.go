package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Messages of protobuf's own. The service is declared by hand, so that the example needs no protoc: its code
// would be this, and messages of the program's own.
type (
	text   = wrapperspb.StringValue
	number = wrapperspb.Int64Value
	chunk  = wrapperspb.BytesValue
)

// service has the methods of the server. Each method is one of gRPC's four kinds.
type service struct{}

// upper answers a text with the text in capital letters.
func (service) upper(_ context.Context, t *text) (*text, error) {
	return wrapperspb.String(strings.ToUpper(t.Value)), nil
}

// piece is how many bytes a message of a stream has.
const piece = 64 << 10

// zeros streams as many bytes as the client asks for.
func (service) zeros(n *number, s grpc.ServerStreamingServer[chunk]) error {
	if n.Value < 0 {
		return status.Errorf(codes.InvalidArgument, "%d bytes were asked for: give a number from 0", n.Value)
	}
	b := make([]byte, piece)
	for left := n.Value; left > 0; left -= piece {
		if err := s.Send(wrapperspb.Bytes(b[:min(left, piece)])); err != nil {
			return err
		}
	}
	return nil
}

// sum takes a stream and answers with its SHA-256.
func (service) sum(s grpc.ClientStreamingServer[chunk, text]) error {
	h := sha256.New()
	for {
		b, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(wrapperspb.String(fmt.Sprintf("%x", h.Sum(nil))))
		}
		if err != nil {
			return err
		}
		h.Write(b.Value)
	}
}

// echo sends each message back as the message comes.
func (service) echo(s grpc.BidiStreamingServer[chunk, chunk]) error {
	for {
		b, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(b); err != nil {
			return err
		}
	}
}

const serviceName = "adverb.example.Streams"

// desc is the description that protoc-gen-go-grpc would write.
var desc = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Upper", Handler: func(srv any, ctx context.Context, decode func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
		t := new(text)
		if err := decode(t); err != nil {
			return nil, err
		}
		call := func(ctx context.Context, t any) (any, error) { return srv.(service).upper(ctx, t.(*text)) }
		if in == nil {
			return call(ctx, t)
		}
		return in(ctx, t, &grpc.UnaryServerInfo{Server: srv, FullMethod: method("Upper")}, call)
	}}},
	Streams: []grpc.StreamDesc{
		{StreamName: "Zeros", ServerStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
			n := new(number)
			if err := s.RecvMsg(n); err != nil {
				return err
			}
			return srv.(service).zeros(n, &grpc.GenericServerStream[number, chunk]{ServerStream: s})
		}},
		{StreamName: "Sum", ClientStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
			return srv.(service).sum(&grpc.GenericServerStream[chunk, text]{ServerStream: s})
		}},
		{StreamName: "Echo", ServerStreams: true, ClientStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
			return srv.(service).echo(&grpc.GenericServerStream[chunk, chunk]{ServerStream: s})
		}},
	},
}

func method(name string) string { return "/" + serviceName + "/" + name }

// client calls the service.
type client struct{ conn *grpc.ClientConn }

func (c client) upper(ctx context.Context, s string) (string, error) {
	t := new(text)
	err := c.conn.Invoke(ctx, method("Upper"), wrapperspb.String(s), t)
	return t.Value, err
}

func (c client) zeros(ctx context.Context, n int64) (grpc.ServerStreamingClient[chunk], error) {
	s, err := c.conn.NewStream(ctx, &desc.Streams[0], method("Zeros"))
	if err != nil {
		return nil, err
	}
	stream := &grpc.GenericClientStream[number, chunk]{ClientStream: s}
	if err := stream.ClientStream.SendMsg(wrapperspb.Int64(n)); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

func (c client) sum(ctx context.Context) (grpc.ClientStreamingClient[chunk, text], error) {
	s, err := c.conn.NewStream(ctx, &desc.Streams[1], method("Sum"))
	return &grpc.GenericClientStream[chunk, text]{ClientStream: s}, err
}

func (c client) echo(ctx context.Context) (grpc.BidiStreamingClient[chunk, chunk], error) {
	s, err := c.conn.NewStream(ctx, &desc.Streams[2], method("Echo"))
	return &grpc.GenericClientStream[chunk, chunk]{ClientStream: s}, err
}
