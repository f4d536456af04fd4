import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.epoll.Epoll;
import io.netty.channel.epoll.EpollChannelOption;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.epoll.EpollMode;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.epoll.EpollSocketChannel;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.SocketChannel;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Netty's own epoll transport: edge-triggered or level-triggered, its calls in its own native library. */
public class Netty {
    static final int BULK = 4_000_000;
    static final int SMALL_ROUNDS = 200;
    static final int CLIENTS = 4;
    static final long LIMIT_S = 80;

    public static void main(String[] args) throws Exception {
        Epoll.ensureAvailability();
        EpollMode mode = EpollMode.valueOf(args[1]);
        int port = Integer.parseInt(args[2]);
        if (args[0].equals("server")) {
            serve(mode, port);
        } else {
            talk(mode, port);
        }
    }

    /** Sends back what comes; stops reading while the peer does not take it. */
    static class Echo extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.write(message);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            context.channel().config().setAutoRead(context.channel().isWritable());
            context.fireChannelWritabilityChanged();
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            cause.printStackTrace();
            context.close();
        }
    }

    static void serve(EpollMode mode, int port) throws Exception {
        EventLoopGroup group = new EpollEventLoopGroup(2);
        ServerBootstrap bootstrap = new ServerBootstrap();
        bootstrap.group(group).channel(EpollServerSocketChannel.class)
            .childOption(EpollChannelOption.EPOLL_MODE, mode)
            .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    channel.pipeline().addLast(new Echo());
                }
            });
        bootstrap.bind("127.0.0.1", port).sync().channel().closeFuture().sync();
    }

    /** Small messages in turn, a bulk both ways at once, a half close. */
    static class Talk extends ChannelInboundHandlerAdapter {
        final CompletableFuture<String> done = new CompletableFuture<>();
        final MessageDigest digest;
        final int seed;
        int round;
        int awaited;
        int got;
        boolean isBulk;

        Talk(int seed) throws Exception {
            this.seed = seed;
            digest = MessageDigest.getInstance("SHA-256");
        }

        byte[] pattern(int n) {
            byte[] bytes = new byte[n];
            for (int i = 0; i < n; i++) {
                bytes[i] = (byte) ((i * 31 + round * 7 + seed * 13) >> (i % 5));
            }
            return bytes;
        }

        void next(ChannelHandlerContext context) {
            got = 0;
            isBulk = round == SMALL_ROUNDS;
            awaited = isBulk ? BULK : 1 + round * 37 % 3000;
            context.writeAndFlush(Unpooled.wrappedBuffer(pattern(awaited)));
            round++;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            next(context);
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf bytes = (ByteBuf) message;
            byte[] copy = new byte[bytes.readableBytes()];
            bytes.readBytes(copy);
            bytes.release();
            digest.update(copy);
            got += copy.length;
            if (got == awaited) {
                if (isBulk) {
                    ((SocketChannel) context.channel()).shutdownOutput();
                } else {
                    next(context);
                }
            }
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.close();
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            done.complete(round + " " + got + " " + HexFormat.of().formatHex(digest.digest()));
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            done.completeExceptionally(cause);
            context.close();
        }
    }

    static void talk(EpollMode mode, int port) throws Exception {
        EventLoopGroup group = new EpollEventLoopGroup(2);
        Talk[] talks = new Talk[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            Talk talk = talks[i] = new Talk(i);
            Bootstrap bootstrap = new Bootstrap();
            bootstrap.group(group).channel(EpollSocketChannel.class)
                .option(EpollChannelOption.EPOLL_MODE, mode)
                .option(ChannelOption.ALLOW_HALF_CLOSURE, true)
                .handler(talk);
            Channel channel = bootstrap.connect("127.0.0.1", port).sync().channel();
            if (i % 2 == 0) {
                // One alone, then two at once.
                talk.done.get(LIMIT_S, TimeUnit.SECONDS);
                channel.closeFuture().sync();
            }
        }
        for (Talk talk : talks) {
            System.out.println(talk.done.get(LIMIT_S, TimeUnit.SECONDS));
        }
        group.shutdownGracefully(0, 1, TimeUnit.SECONDS).sync();
    }
}
