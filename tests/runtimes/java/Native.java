import java.io.FileDescriptor;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;

/** Java sockets whose bytes a native library of the program moves, by the number of their descriptor. */
public class Native {
    static final int BULK = 4_000_000;
    static final int SMALL_ROUNDS = 200;

    static native int send(int fd, ByteBuffer from, int at, int n);

    static native int recv(int fd, ByteBuffer to, int at, int n);

    public static void main(String[] args) throws Exception {
        System.load(args[2]);
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            talk(port);
        }
    }

    /** The descriptor of a channel: what such programs find by reflection. */
    static int number(SocketChannel channel) throws Exception {
        Field field = channel.getClass().getDeclaredField("fdVal");
        field.setAccessible(true);
        return field.getInt(channel);
    }

    static void sendAll(int fd, ByteBuffer from, int n) {
        for (int at = 0; at < n;) {
            int sent = send(fd, from, at, n - at);
            if (sent < 0) {
                throw new IllegalStateException("send: errno " + -sent);
            }
            at += sent;
        }
    }

    static void serve(int port) throws Exception {
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress("127.0.0.1", port));
        ByteBuffer room = ByteBuffer.allocateDirect(65536);
        while (true) {
            try (SocketChannel channel = server.accept()) {
                int fd = number(channel);
                for (int n; (n = recv(fd, room, 0, room.capacity())) != 0;) {
                    if (n < 0) {
                        throw new IllegalStateException("recv: errno " + -n);
                    }
                    sendAll(fd, room, n);
                }
            }
        }
    }

    /** Odd messages are moved by Java itself, so that both kinds of calls meet on one connection. */
    static void talk(int port) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            int fd = number(channel);
            ByteBuffer room = ByteBuffer.allocateDirect(65536);
            for (int round = 0; round < SMALL_ROUNDS; round++) {
                exchange(channel, fd, room, 1 + round * 37 % 3000, round % 2 == 0, digest);
            }
            int[] got = {0};
            Thread reader = new Thread(() -> {
                ByteBuffer back = ByteBuffer.allocateDirect(65536);
                while (got[0] < BULK) {
                    int n = recv(fd, back, 0, back.capacity());
                    if (n <= 0) {
                        return;
                    }
                    back.clear().limit(n);
                    digest.update(back);
                    got[0] += n;
                }
            });
            reader.setDaemon(true);
            reader.start();
            room.clear();
            for (int sent = 0; sent < BULK;) {
                int n = Math.min(50_000, BULK - sent);
                for (int i = 0; i < n; i++) {
                    room.put(i, (byte) ((sent + i) * 31 >> 3));
                }
                sendAll(fd, room, n);
                sent += n;
            }
            reader.join();
            channel.shutdownOutput();
            System.out.println(got[0] + " " + recv(fd, room, 0, 10) + " "
                + HexFormat.of().formatHex(digest.digest()));
        }
    }

    static void exchange(SocketChannel channel, int fd, ByteBuffer room, int n, boolean isNative,
            MessageDigest digest) throws Exception {
        byte[] message = new byte[n];
        Arrays.fill(message, (byte) n);
        room.clear();
        room.put(message).flip();
        if (isNative) {
            sendAll(fd, room, n);
        } else {
            while (room.hasRemaining()) {
                channel.write(room);
            }
        }
        room.clear();
        for (int at = 0; at < n;) {
            int got;
            if (isNative) {
                got = recv(fd, room, at, n - at);
            } else {
                room.limit(n).position(at);
                got = channel.read(room);
                room.clear();
            }
            if (got <= 0) {
                throw new IllegalStateException("ended after " + at + " of " + n + ": " + got);
            }
            at += got;
        }
        room.clear().limit(n);
        digest.update(room);
    }
}
