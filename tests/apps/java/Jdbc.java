import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.HexFormat;

/** A database client by its URL, which asks another server on another port beside it, as one that looks names up would. */
public class Jdbc {
    static final int ROWS = 20_000;
    static final int ASKED = 3_000;

    public static void main(String[] args) throws Exception {
        String url = args[0];
        int directory = Integer.parseInt(args[1]);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (Connection base = DriverManager.getConnection(url); Socket names = new Socket("127.0.0.1", directory)) {
            names.setTcpNoDelay(true);
            try (Statement statement = base.createStatement()) {
                statement.execute("create table t (id int primary key, word text)");
            }
            base.setAutoCommit(false);
            try (PreparedStatement insert = base.prepareStatement("insert into t values (?, ?)")) {
                for (int i = 0; i < ROWS; i++) {
                    insert.setInt(1, i);
                    insert.setString(2, "word number " + i * 7919L);
                    insert.addBatch();
                    if (i % 500 == 499) {
                        insert.executeBatch();
                        ask(names, "batch " + i, digest);
                    }
                }
            }
            base.commit();
            try (PreparedStatement one = base.prepareStatement("select word from t where id = ?")) {
                for (int i = 0; i < ASKED; i++) {
                    one.setInt(1, i * 17 % ROWS);
                    try (ResultSet found = one.executeQuery()) {
                        found.next();
                        digest.update(found.getString(1).getBytes(StandardCharsets.UTF_8));
                    }
                }
            }
            try (Statement statement = base.createStatement();
                 ResultSet all = statement.executeQuery("select id, word from t order by id")) {
                int rows = 0;
                while (all.next()) {
                    digest.update(all.getString(2).getBytes(StandardCharsets.UTF_8));
                    rows++;
                }
                System.out.println(rows + " rows " + HexFormat.of().formatHex(digest.digest()));
            }
        }
    }

    /** Sends a question and takes the answer, which is the question. */
    static void ask(Socket names, String question, MessageDigest digest) throws Exception {
        byte[] text = question.getBytes(StandardCharsets.UTF_8);
        OutputStream out = names.getOutputStream();
        InputStream in = names.getInputStream();
        out.write(text);
        digest.update(in.readNBytes(text.length));
    }
}
